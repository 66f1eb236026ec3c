"""Job monitoring for HPC centres: the types and tools that all parts share.

For programs: `from batchjob import track` records a piece of work; `begin_work()` and `end_work()`
do so where `with` cannot; `batchjob.history()`, `job()` and `stats()` query what has run.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["begin_work", "end_work", "history", "job", "stats", "track"]

if TYPE_CHECKING:
    from batchjob.local_runs.history import history, job, stats
    from batchjob.tracking.tracker import begin_work, end_work, track

_MODULE_OF_NAME = {
    "track": "tracking.tracker",
    "begin_work": "tracking.tracker",
    "end_work": "tracking.tracker",
    "history": "local_runs.history",
    "job": "local_runs.history",
    "stats": "local_runs.history",
}


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that importing the package stays cheap."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
