"""Where connections are accepted: how many there may be, and which one makes room for another.

asyncio's own servers begin TLS with whoever connects and know no bound. Here a connection counts
from its first moment, so that those that never speak are not free either.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence

from prometheus_client import Counter as CounterMetric

from batchjob.runtime.values import Network
from batchjob_stats_server.auth import peers
from batchjob_stats_server.http.protocol import Connection

log = logging.getLogger(__name__)

BACKLOG = 1024
_AT_ONCE = 64  # accepted before anything else has its turn
_PAUSE_SECONDS = 0.5  # after an error such as "too many open files"
_HANDSHAKE_SECONDS = 10.0


class OpenConnections:
    """All there are, in the order in which they began to wait for their clients.

    A trusted peer brings the requests of many: it has no bound of its own and is never dropped.
    """

    def __init__(
        self,
        maximum: int,
        maximum_of_peer: int,
        trusted: Sequence[Network],
        dropped: CounterMetric,
    ) -> None:
        self._maximum = maximum
        self._maximum_of_peer = maximum_of_peer
        self._trusted = trusted
        self._dropped = dropped
        self._peers: dict[Connection, object] = {}  # None: trusted
        self._of_peer: Counter[object] = Counter()

    def admit(self, connection: Connection, host: str) -> bool:
        """Count one more, and drop another for it where there are enough; False: there is no room.

        One whose request is being answered is dropped only for a peer that has fewer.
        """
        scope = {"client": (host, 0)}
        peer = None if peers.within(scope, self._trusted) else peers.household(scope)
        own = self._of_peer[peer] if peer is not None else 0
        if peer is not None and own >= self._maximum_of_peer and not self._drop_of(peer):
            return False
        if len(self._peers) >= self._maximum and not self._drop_of_greediest(own):
            return False
        self._peers[connection] = peer
        self._of_peer[peer] += 1
        return True

    def make_room(self) -> None:
        """Drop one to free a file descriptor."""
        self._drop_of_greediest(0)

    def answered(self, connection: Connection) -> None:
        """It waits for its client from now on."""
        if connection in self._peers:
            self._peers[connection] = self._peers.pop(connection)

    def leave(self, connection: Connection) -> None:
        """It has ended; more than once is the same."""
        if connection in self._peers:
            peer = self._peers.pop(connection)
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def __len__(self) -> int:
        return len(self._peers)

    def _drop_of(self, peer: object) -> bool:
        """The one of this peer that has waited longest; False: none waits."""
        self._dropped.labels("peer").inc()
        mine = (each for each, its_peer in self._peers.items() if its_peer == peer)
        return self._drop(next((each for each in mine if each.waits()), None))

    def _drop_of_greediest(self, own: int) -> bool:
        """The one that has waited longest, of the peer that has most; `own`: the newcomer's.

        So whoever connects over and over drops connections of their own.
        """
        self._dropped.labels("all").inc()
        best, best_rank = None, (False, 0, False)
        for connection, peer in self._peers.items():
            count, waits = self._of_peer[peer], connection.waits()
            rank = (waits and count > own, count, waits)
            if peer is not None and rank > best_rank and (waits or count > own + 1):
                best, best_rank = connection, rank
        return self._drop(best)

    def _drop(self, connection: Connection | None) -> bool:
        if connection is None:
            return False
        self.leave(connection)
        connection.drop()
        return True


class Acceptor:
    """Takes the connections of a listening socket; uvicorn closes it as it does its own servers."""

    def __init__(
        self,
        listener: socket.socket,
        connections: OpenConnections,
        make: Callable[[], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connections = connections
        self._make = make
        self._tls = tls
        self._greeted: dict[asyncio.Task[None], Connection] = {}
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in self._greeted.values():
            connection.drop()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: uvicorn ends the connections."""

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be accepted: %s", error.strerror)
                self._connections.make_room()
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_SECONDS, self._listen)
                return
            self._greet(client, address[0])

    def _greet(self, client: socket.socket, host: str) -> None:
        connection = self._make()
        if not self._connections.admit(connection, host):
            client.close()
            return
        client.setblocking(False)
        connection.open_connections = self._connections
        connection.accepted = client
        task = self._loop.create_task(self._connect(connection, client))
        self._greeted[task] = connection
        task.add_done_callback(self._greeted.pop)

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        seconds = _HANDSHAKE_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # of TLS as well
            log.debug("a connection ended before its first request: %s", error)
            self._connections.leave(connection)
            client.close()
