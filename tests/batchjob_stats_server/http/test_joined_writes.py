"""The head and the body of an answer leave in one piece; nothing waits longer than a pass."""

import asyncio
import socket
import struct

from batchjob_stats_server.http.joined_writes import JoinedWrites
from tests.batchjob_stats_server.serving import serving


def sent(speak):
    """What leaves, piece by piece, when `speak` writes to the transport during a pass."""
    pieces = []

    class Transport:
        def write(self, piece):
            pieces.append(piece)

        def writelines(self, parts):
            pieces.append(b"".join(parts))

        def close(self):
            pieces.append("closed")

    async def passes():
        speak(JoinedWrites(Transport()))
        await asyncio.sleep(0)

    asyncio.run(passes())
    return pieces


def write(*pieces):
    def speak(transport):
        for piece in pieces:
            transport.write(piece)

    return speak


def test_the_second_piece_leaves_with_the_first():
    assert sent(write(b"head", b"body")) == [b"headbody"]


def test_a_single_piece_leaves_at_the_end_of_the_pass():
    assert sent(write(b"head")) == [b"head"]


def test_one_piece_at_most_is_kept_in_a_pass():
    assert sent(write(b"head", b"1", b"2", b"3")) == [b"head1", b"2", b"3"]


def test_a_piece_without_bytes_is_no_end():
    assert sent(write(b"head", b"", b"body")) == [b"head", b"body"]


def test_what_is_kept_leaves_before_the_end():
    def speak(transport):
        transport.write(b"head")
        transport.close()

    assert sent(speak) == [b"head", "closed"]


def test_a_short_answer_is_one_segment(services):
    with (
        serving(services) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += client.recv(65536)
        assert segments_received(client) == 1


def segments_received(client):
    """Segments with data; tcpi_data_segs_in of linux/tcp.h."""
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)
    return struct.unpack_from("I", info, 152)[0]
