"""Log lines for machines and people: logfmt or JSON on standard error."""

import json
import logging
import re
import sys
import threading
import time

from batchjob.runtime.settings import LogOptions


class LineFormatter(logging.Formatter):
    """`ts=... level=info logger=batchjob.jobs msg="..."`, as the Prometheus programs write.

    With the format `json`, an object with these keys.
    """

    def __init__(self, format: str) -> None:
        super().__init__()
        self._format = format

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            pairs["error"] = self.formatException(record.exc_info)
        if self._format == "json":
            return _json(pairs)
        return " ".join(f"{key}={_quote(value)}" for key, value in pairs.items())


def _quote(value: str) -> str:
    plain = value and not any(c in value for c in ' ="\\') and value.isprintable()
    return value if plain else _json(value)


def _json(value: object) -> str:
    """JSON on one line, with control characters and line separators escaped.

    Every character that Unicode classifies as a control, a format or a separator other than a space
    is escaped, and so is a byte that is not UTF-8: a log must look the same to every reader.
    """
    return escape_unprintable(json.dumps(value, ensure_ascii=False))


def escape_unprintable(text: str) -> str:
    """The text with unprintable characters, such as line feeds, as JSON escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def set_up(options: LogOptions) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(options.format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options.level.upper())


_VARYING = re.compile(r"'[^']*'?|\d+")  # quoted data, numbers


class LogOnce:
    """Logs a message once, however often it occurs: one broken device must not fill a disk."""

    def __init__(self, logger: logging.Logger, limit: int = 1000) -> None:
        self._logger = logger
        self._limit = limit
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def warning(self, key: str, message: str, *arguments: object) -> None:
        """Log the first occurrence of `key`; when `limit` keys are known, nothing new is logged."""
        self._log_first(logging.WARNING, (key, ""), message, arguments)

    def failure(self, key: str, message: str, *arguments: object) -> None:
        """Log the first occurrence of each different message of `key`, whatever its numbers."""
        kind = _VARYING.sub("0", message % arguments)
        self._log_first(logging.WARNING, (key, kind), message, arguments)

    def info(self, key: str, message: str, *arguments: object) -> None:
        """The same as `warning` at level info, for conditions that are not faults."""
        self._log_first(logging.INFO, (key, ""), message, arguments)

    def _log_first(
        self, level: int, kind: tuple[str, str], message: str, arguments: tuple[object, ...]
    ) -> None:
        with self._lock:
            if kind in self._logged or len(self._logged) >= self._limit:
                return
            self._logged.add(kind)
        self._logger.log(level, message, *arguments)

    def forget(self, key: str) -> None:
        """Forget the condition: its next occurrence is logged again."""
        with self._lock:
            self._logged = {kind for kind in self._logged if kind[0] != key}
