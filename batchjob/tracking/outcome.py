"""How a piece of work ended, derived from the exception it raised."""

import sys
import traceback
from typing import NamedTuple


class WorkOutcome(NamedTuple):
    """How a piece of work ended: `success`, `failed`, `timeout`, `error`, `cancelled`, `retry`."""

    status: str
    error: str = ""
    return_code: int | None = None  # negative for a signal, as in subprocess
    result_type: str = ""  # type of the return value


def outcome_of_result(result: object) -> WorkOutcome:
    """The outcome of work that returned this; only the type is recorded."""
    return WorkOutcome("success", result_type="" if result is None else type(result).__qualname__)


def outcome_of_error(error: BaseException | None) -> WorkOutcome:
    """The outcome of work that raised this exception; None: it raised none."""
    if error is None:
        return WorkOutcome("success")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return WorkOutcome("failed" if code else "success", text if code else "", code)
    if isinstance(error, _imported_exceptions("subprocess", "CalledProcessError")):
        return WorkOutcome("failed", text, getattr(error, "returncode", None))
    if isinstance(error, (TimeoutError, *_imported_exceptions("subprocess", "TimeoutExpired"))):
        return WorkOutcome("timeout", text)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return WorkOutcome("cancelled", text)
    cancelled = isinstance(error, _imported_exceptions("asyncio", "CancelledError"))
    return WorkOutcome("cancelled" if cancelled else "error", text)


def _imported_exceptions(module: str, name: str) -> tuple[type[BaseException], ...]:
    """The class, if its module was imported; otherwise it cannot have been raised."""
    exception = getattr(sys.modules.get(module), name, None)
    return () if exception is None else (exception,)
