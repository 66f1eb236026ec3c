"""How a piece of work ended, told by the exception that it let through."""

import sys
import traceback
from typing import NamedTuple


class WorkOutcome(NamedTuple):
    """How a piece of work ended: `success`, `failed`, `timeout`, `error`, `cancelled`, `retry`."""

    status: str
    error: str = ""
    return_code: int | None = None  # negative for a signal, as in subprocess
    result_type: str = ""  # type of the return value


def returned(result: object) -> WorkOutcome:
    """How work ended that returned this, of which only the type is recorded."""
    return WorkOutcome("success", result_type="" if result is None else type(result).__qualname__)


def outcome_of(error: BaseException | None) -> WorkOutcome:
    """How work ended that let this exception through."""
    if error is None:
        return WorkOutcome("success")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return WorkOutcome("failed" if code else "success", text if code else "", code)
    if isinstance(error, _classes("subprocess", "CalledProcessError")):
        return WorkOutcome("failed", text, getattr(error, "returncode", None))
    if isinstance(error, (TimeoutError, *_classes("subprocess", "TimeoutExpired"))):
        return WorkOutcome("timeout", text)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return WorkOutcome("cancelled", text)
    gone = isinstance(error, _classes("asyncio", "CancelledError"))
    return WorkOutcome("cancelled" if gone else "error", text)


def _classes(module: str, name: str) -> tuple[type[BaseException], ...]:
    """An exception of a module that was not imported cannot have been raised."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)
