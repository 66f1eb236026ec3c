"""Starts requests by peer in turn, so that many requests from one address do not delay others.

All requests compete for the event loop and for threads. Therefore only a few start in each pass of
the loop, and only a few of one peer are processed at a time; the others wait here, where they cost
nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable

TRUSTED = None
"""A peer that forwards the requests of many users: the number of its requests is not limited."""

HEALTH_PATH = "/-/healthy"
"""Needs no turn, no thread and no place in a rate limit: who restarts the server asks for it."""

_STARTS_PER_PASS = 16
_GUARANTEED_PER_PEER = 2  # requests of a peer in progress at once, while other peers wait

Turn = asyncio.Future[bool]


class RequestTurns:
    """Decides which request may begin; for the event loop's thread only."""

    def __init__(self, max_per_peer: int) -> None:
        """`max_per_peer`: maximum number of requests of one peer in progress, if it is alone."""
        self._max_per_peer = max_per_peer
        self._in_progress: Counter[Hashable] = Counter()
        self._queues: dict[Hashable, dict[Turn, None]] = {}  # the next to start is first
        self._starts_left = _STARTS_PER_PASS
        self._scheduled = False

    def acquire(self, peer: Hashable) -> Turn:
        """A future: True when the request may begin, False when it was withdrawn."""
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._starts_left and peer not in self._queues and self._has_room(peer):
            self._start(peer, turn)
        else:
            self._queues.setdefault(peer, {})[turn] = None
        return turn

    def withdraw(self, peer: Hashable, turn: Turn) -> None:
        """Give up the turn of a client that has disconnected; no effect once it has begun."""
        queue = self._queues.get(peer, {})
        if turn in queue:
            del queue[turn]
            if not queue:
                del self._queues[peer]
        if not turn.done():
            turn.set_result(False)

    def release(self, peer: Hashable) -> None:
        """End the turn of a request that has been answered."""
        self._in_progress[peer] -= 1
        if not self._in_progress[peer]:
            del self._in_progress[peer]
        if self._queues:
            self._schedule()

    def _has_room(self, peer: Hashable) -> bool:
        fair_share = self._max_per_peer // max(len(self._in_progress), 1)
        guaranteed = min(_GUARANTEED_PER_PEER, self._max_per_peer)
        return peer is TRUSTED or self._in_progress[peer] < max(fair_share, guaranteed)

    def _start(self, peer: Hashable, turn: Turn) -> None:
        turn.set_result(True)
        self._in_progress[peer] += 1
        self._starts_left -= 1
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._starts_left = _STARTS_PER_PASS
        some_started = True
        while self._starts_left and some_started:
            some_started = sum(map(self._start_first, list(self._queues))) > 0

    def _start_first(self, peer: Hashable) -> bool:
        """Start the first request of a peer, which then comes after the others; False: no room."""
        if not (self._starts_left and self._has_room(peer)):
            return False
        queue = self._queues.pop(peer)
        turn = next(iter(queue))
        del queue[turn]
        if queue:
            self._queues[peer] = queue
        if not turn.done():  # it is done if the server is stopping
            self._start(peer, turn)
        return True
