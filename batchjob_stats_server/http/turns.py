"""Requests begin by peer in turn: a crowd at one address does not delay others.

All wait for the end of a pass of the event loop, which handles what has become possible since the
previous one, and for a thread. So only a few requests begin in each pass, and only a few of one
peer are processed at a time; the others wait here, where they cost nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable

TRUSTED = None
"""A peer that brings the requests of many: any number of them is worked on."""

_BEGIN_IN_A_PASS = 16
_OF_EACH = 2  # requests of a peer in progress at once, while other peers wait

Turn = asyncio.Future[bool]


class RequestTurns:
    """Decides which request may begin; for the event loop's thread only."""

    def __init__(self, of_peer: int) -> None:
        """`of_peer`: maximum number of requests of one peer in progress, if it is alone."""
        self._of_peer = of_peer
        self._under_way: Counter[Hashable] = Counter()
        self._lines: dict[Hashable, dict[Turn, None]] = {}  # by peer; the next to start comes first
        self._left = _BEGIN_IN_A_PASS
        self._scheduled = False

    def come(self, peer: Hashable) -> Turn:
        """A future: True when the request may begin, False when it was withdrawn."""
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._left and peer not in self._lines and self._room(peer):
            self._begin(peer, turn)
        else:
            self._lines.setdefault(peer, {})[turn] = None
        return turn

    def withdraw(self, peer: Hashable, turn: Turn) -> None:
        """The client has left; no effect on a request that has begun."""
        line = self._lines.get(peer, {})
        if turn in line:
            del line[turn]
            if not line:
                del self._lines[peer]
        if not turn.done():
            turn.set_result(False)

    def leave(self, peer: Hashable) -> None:
        """A request that had begun has been answered."""
        self._under_way[peer] -= 1
        if not self._under_way[peer]:
            del self._under_way[peer]
        if self._lines:
            self._schedule()

    def _room(self, peer: Hashable) -> bool:
        of_each = self._of_peer // max(len(self._under_way), 1)
        least = min(_OF_EACH, self._of_peer)
        return peer is TRUSTED or self._under_way[peer] < max(of_each, least)

    def _begin(self, peer: Hashable, turn: Turn) -> None:
        turn.set_result(True)
        self._under_way[peer] += 1
        self._left -= 1
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._left = _BEGIN_IN_A_PASS
        some_begin = True
        while self._left and some_begin:
            some_begin = sum(map(self._begin_first, list(self._lines))) > 0

    def _begin_first(self, peer: Hashable) -> bool:
        """Whether this peer's first request has begun; then the peer is behind the others."""
        if not (self._left and self._room(peer)):
            return False
        line = self._lines.pop(peer)
        turn = next(iter(line))
        del line[turn]
        if line:
            self._lines[peer] = line
        if not turn.done():  # it is done if the server is stopping
            self._begin(peer, turn)
        return True
