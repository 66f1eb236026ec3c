"""A queue that serves its clients in turn, however much one of them puts into it."""

import threading
from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobinQueue(Generic[T]):
    """Each client has a queue of its own; `get` takes the first item of each queue in turn."""

    def __init__(self, max_waiting: int) -> None:
        """`max_waiting`: the maximum number of waiting items of one client."""
        self._max_waiting = max_waiting
        # No queue is empty; the first one is served next.
        self._queues: dict[Hashable, deque[T]] = {}
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False

    def lengths(self) -> Counter[Hashable]:
        """The number of waiting items of each client."""
        with self._changed:
            return Counter({client: len(queue) for client, queue in self._queues.items()})

    def put(self, client: Hashable, item: T) -> bool:
        """Append an item; False if the client's queue is full or all are closed."""
        with self._changed:
            queue = self._queues.get(client, deque())
            if self._closed or len(queue) >= self._max_waiting:
                return False
            queue.append(item)
            self._size += 1
            self._queues[client] = queue
            self._changed.notify()
            return True

    def get(self) -> T | None:
        """Wait for the next item; None when the queue is closed and empty."""
        with self._changed:
            while not self._queues:
                if self._closed:
                    return None
                self._changed.wait()
            return self._take_next()

    def get_nowait(self) -> T | None:
        """The next item; None if no item waits."""
        with self._changed:
            return self._take_next() if self._queues else None

    def withdraw(self, client: Hashable) -> T | None:
        """Take back the last item that the client put; None if none of its items waits."""
        with self._changed:
            queue = self._queues.get(client)
            if queue is None:
                return None
            item = queue.pop()
            self._size -= 1
            if not queue:
                del self._queues[client]
            return item

    def close(self) -> None:
        """Accept no more items; `get` returns None when all have been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return self._size

    def _take_next(self) -> T:
        self._size -= 1
        client = next(iter(self._queues))
        queue = self._queues.pop(client)
        item = queue.popleft()
        if queue:
            self._queues[client] = queue  # moves to the end
        return item
