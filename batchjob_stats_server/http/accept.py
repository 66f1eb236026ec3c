"""Accepts connections: how many there may be, and which one is dropped for another.

asyncio's own servers start TLS with every client and have no limit. Here a connection counts from
its first moment, so that silent ones count as well. A crowd that connects repeatedly drops
connections of its own.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Hashable, Sequence

from prometheus_client import Counter as CounterMetric

from batchjob.runtime.values import Network
from batchjob_stats_server.auth import peers
from batchjob_stats_server.http.protocol import Connection
from batchjob_stats_server.turns import TRUSTED

log = logging.getLogger(__name__)

BACKLOG = 1024
_ACCEPTED_PER_PASS = 64  # new connections before other events are handled
_PAUSE_SECONDS = 0.5  # after an error such as "too many open files"
_HANDSHAKE_SECONDS = 10.0


class OpenConnections:
    """All connections, in the order in which they began to wait for their clients.

    A trusted peer sends the requests of many users: it has no limit and is never dropped.
    """

    def __init__(
        self, maximum: int, maximum_of_peer: int, trusted: Sequence[Network], dropped: CounterMetric
    ) -> None:
        self.maximum = maximum
        self.maximum_of_peer = maximum_of_peer
        self.trusted = trusted
        self._dropped = dropped
        self._peers: dict[Connection, Hashable] = {}
        # For each peer, the connection that has waited longest comes first.
        self._of_peer: dict[Hashable, dict[Connection, None]] = {}

    def admit(self, connection: Connection, peer: Hashable) -> bool:
        """Count a new connection, dropping another if necessary; False: there is no room.

        A connection whose request is being answered is dropped only for a peer with fewer
        connections.
        """
        if self._count(peer) >= self.maximum_of_peer:
            self._dropped.labels("peer").inc()
            if not self._drop(self._longest_waiting(peer)):
                return False
        if len(self._peers) >= self.maximum and not self.drop_from_greediest(peer):
            return False
        self._peers[connection] = peer
        self._of_peer.setdefault(peer, {})[connection] = None
        return True

    def mark_waiting(self, connection: Connection) -> None:
        """Record that the connection waits for its client from now on."""
        if connection in self._peers:
            its_peer = self._of_peer[self._peers[connection]]
            its_peer[connection] = its_peer.pop(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended; may be called more than once."""
        if connection in self._peers:
            peer = self._peers.pop(connection)
            del self._of_peer[peer][connection]
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def __len__(self) -> int:
        return len(self._peers)

    def drop_from_greediest(self, newcomer: Hashable = TRUSTED) -> bool:
        """Drop the longest waiting connection of the peer with most, never of one with fewer.

        So a client that connects repeatedly drops connections of its own.
        """
        self._dropped.labels("all").inc()
        own = self._count(newcomer)
        counts = {peer: len(each) for peer, each in self._of_peer.items() if peer is not TRUSTED}
        greedier = sorted((peer for peer in counts if counts[peer] > own), key=lambda p: -counts[p])
        for peer in (*greedier, newcomer):
            if peer is not TRUSTED and (longest := self._longest_waiting(peer)):
                return self._drop(longest)
        if greedier and counts[greedier[0]] > own + 1:
            return self._drop(next(iter(self._of_peer[greedier[0]])))
        return False

    def _count(self, peer: Hashable) -> int:
        return len(self._of_peer.get(peer, ())) if peer is not TRUSTED else 0

    def _longest_waiting(self, peer: Hashable) -> Connection | None:
        return next((each for each in self._of_peer.get(peer, ()) if each.is_waiting()), None)

    def _drop(self, connection: Connection | None) -> bool:
        if connection is None:
            return False
        self.remove(connection)
        connection.drop()
        return True


class Acceptor:
    """Accepts the connections of a listening socket; uvicorn closes it like its own servers."""

    def __init__(
        self,
        listener: socket.socket,
        connections: OpenConnections,
        create_connection: Callable[[], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connections = connections
        self._create_connection = create_connection
        self._tls = tls
        self._connecting: dict[asyncio.Task[None], Connection] = {}
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in self._connecting.values():
            connection.drop()

    async def wait_closed(self) -> None:
        """Nothing to wait for: uvicorn closes the connections."""

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept some in each pass of the event loop; the others wait in the kernel's queue."""
        for _ in range(_ACCEPTED_PER_PASS):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept connections: %s", error.strerror)
                self._connections.drop_from_greediest()  # to free a file descriptor
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_SECONDS, self._listen)
                return
            scope = {"client": (address[0], 0)}
            self._admit(client, peers.caller_of(scope, self._connections.trusted))

    def _admit(self, client: socket.socket, peer: Hashable) -> None:
        connection = self._create_connection()
        if not self._connections.admit(connection, peer):
            client.close()
            return
        client.setblocking(False)
        connection.open_connections = self._connections
        connection.accepted = client
        task = self._loop.create_task(self._connect(connection, client))
        self._connecting[task] = connection
        task.add_done_callback(self._connecting.pop)

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        seconds = _HANDSHAKE_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # including TLS errors
            log.debug("a connection was closed before its first request: %s", error)
            self._connections.remove(connection)
            client.close()
