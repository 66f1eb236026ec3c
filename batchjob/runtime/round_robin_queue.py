"""A queue that serves its clients in turn, however much one of them puts into it."""

import threading
from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobinQueue(Generic[T]):
    """Each client has a line of its own; `get` takes the first item of each line in turn."""

    def __init__(self, longest_line: int) -> None:
        """`longest_line`: the maximum number of waiting items of one client."""
        self._longest_line = longest_line
        # No line is empty; the first one is served next.
        self._lines: dict[Hashable, deque[T]] = {}
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False

    def lengths(self) -> Counter[Hashable]:
        """The number of waiting items of each client."""
        with self._changed:
            return Counter({client: len(line) for client, line in self._lines.items()})

    def put(self, client: Hashable, item: T) -> bool:
        """Whether the item was accepted: not if the line is full or the queue is closed."""
        with self._changed:
            line = self._lines.get(client, deque())
            if self._closed or len(line) >= self._longest_line:
                return False
            line.append(item)
            self._size += 1
            self._lines[client] = line
            self._changed.notify()
            return True

    def get(self) -> T | None:
        """Wait for the next item; None when the queue is closed and empty."""
        with self._changed:
            while not self._lines:
                if self._closed:
                    return None
                self._changed.wait()
            return self._next()

    def get_nowait(self) -> T | None:
        """The next item; None if no item waits."""
        with self._changed:
            return self._next() if self._lines else None

    def withdraw(self, client: Hashable) -> T | None:
        """Take back the last item that the client put; None if none of its items waits."""
        with self._changed:
            line = self._lines.get(client)
            if line is None:
                return None
            item = line.pop()
            self._size -= 1
            if not line:
                del self._lines[client]
            return item

    def close(self) -> None:
        """Accept no more items; `get` returns None when all have been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return self._size

    def _next(self) -> T:
        self._size -= 1
        client = next(iter(self._lines))
        line = self._lines.pop(client)
        item = line.popleft()
        if line:
            self._lines[client] = line  # moves to the end
        return item
