"""Keeps one bad item from affecting the others: it fails alone, or hangs in a thread of its own."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from batchjob.schedulers.accounting import SourceError

T = TypeVar("T")


def isolate_failures(
    items: Sequence[T],
    work: Callable[[Sequence[T]], object],
    is_common: Callable[[Exception, int], bool],
) -> dict[T, Exception]:
    """Do the work on all items at once; where it fails, on halves of them.

    Returns the items on which it failed alone, with the errors. An error for which `is_common`
    returns true, given also the number of such items so far, is raised: it is not due to an item.
    """
    failed: dict[T, Exception] = {}
    parts = [items] if items else []
    while parts:
        part = parts.pop()
        try:
            work(part)
        except Exception as error:  # whatever one item does, the others are done
            if is_common(error, len(failed)):
                raise
            if len(part) == 1:
                failed[part[0]] = error
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
    return failed


def is_database_failure(error: Exception, _failed: int = 0) -> bool:
    """Whether the database itself fails (locked, full, gone), rather than refuses a value."""
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)


def do_each(items: Iterable[T], work: Callable[[T], object]) -> bool:
    """Do the work on each item, whatever it does on others; returns whether all of it succeeded.

    Work that returns False has failed. Raises the first error when the other items are done, and a
    failure of the database at once.
    """
    succeeded, failure = True, None
    for item in items:
        try:
            succeeded &= work(item) is not False
        except Exception as error:  # whatever one item does, the others are done
            if is_database_failure(error):
                raise
            failure = failure or error
    if failure:
        raise failure
    return succeeded


class Patience:
    """Waits for what may hang, such as a file system, only so long: it hangs in its own thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hanging: dict[str, threading.Thread] = {}  # by what is asked

    def each(self, name: str, ask: Callable[[], Iterable[T]]) -> Iterator[T]:
        """What `ask` returns; raises SourceError if an item takes too long, or still hangs."""
        items = self._call(name, lambda: iter(ask()))
        while found := self._call(name, lambda: list(islice(items, 1))):
            yield found[0]

    def _call(self, name: str, work: Callable[[], T]) -> T:
        earlier = self._hanging.get(name)
        if earlier is not None and earlier.is_alive():
            raise SourceError("an earlier reading still hangs")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # raised below, in the thread that asks
                answer.set_exception(error)

        thread = self._hanging[name] = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        thread.join(self._seconds)
        if not answer.done():
            raise SourceError(f"no answer within {self._seconds:g} s")
        return answer.result()
