"""Head and body of a response are sent together; no write waits longer than a loop iteration."""

import asyncio
import socket
import struct

from batchjob_stats_server.http.joined_writes import JoinedWrites
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled


def sent_pieces(speak):
    """What is sent, piece by piece, when `speak` writes to the transport in one loop iteration."""
    pieces = []

    class Transport:
        def write(self, piece):
            pieces.append(piece)

        def writelines(self, parts):
            pieces.append(b"".join(parts))

        def close(self):
            pieces.append("closed")

    async def run_one_iteration():
        speak(JoinedWrites(Transport()))
        await asyncio.sleep(0)

    asyncio.run(run_one_iteration())
    return pieces


def writes(*pieces):
    def speak(transport):
        for piece in pieces:
            transport.write(piece)

    return speak


def test_second_write_is_joined_to_the_first():
    assert sent_pieces(writes(b"head", b"body")) == [b"headbody"]


def test_single_write_is_sent_at_end_of_loop_iteration():
    assert sent_pieces(writes(b"head")) == [b"head"]


def test_only_first_write_of_an_iteration_is_delayed():
    assert sent_pieces(writes(b"head", b"1", b"2", b"3")) == [b"head1", b"2", b"3"]


def test_empty_write_does_not_flush():
    assert sent_pieces(writes(b"head", b"", b"body")) == [b"head", b"body"]


def test_delayed_write_is_sent_before_close():
    def speak(transport):
        transport.write(b"head")
        transport.close()

    assert sent_pieces(speak) == [b"head", "closed"]


def test_short_response_is_one_tcp_segment(services):
    with (
        serving(services) as port,
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)) as client,
    ):
        client.sendall(b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += client.recv(65536)
        assert received_segment_count(client) == 1


def received_segment_count(client):
    """Segments with data; tcpi_data_segs_in of linux/tcp.h."""
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)
    return struct.unpack_from("I", info, 152)[0]
