"""How a piece of work ended, told by the exception that it let through."""

import sys
import traceback
from typing import NamedTuple


class Outcome(NamedTuple):
    """How a piece of work ended: `success`, `failed`, `timeout`, `error`, `cancelled`, `retry`."""

    status: str
    error: str = ""
    return_code: int | None = None  # negative: a signal, as subprocess has it


def outcome_of(error: BaseException | None) -> Outcome:
    """How work ended that let this exception through."""
    if error is None:
        return Outcome("success")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Outcome("failed" if code else "success", text if code else "", code)
    if isinstance(error, _classes("subprocess", "CalledProcessError")):
        return Outcome("failed", text, getattr(error, "returncode", None))
    if isinstance(error, (TimeoutError, *_classes("subprocess", "TimeoutExpired"))):
        return Outcome("timeout", text)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return Outcome("cancelled", text)
    gone = isinstance(error, _classes("asyncio", "CancelledError"))
    return Outcome("cancelled" if gone else "error", text)


def _classes(module: str, name: str) -> tuple[type[BaseException], ...]:
    """An exception of a module that was not imported cannot have been raised."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)
