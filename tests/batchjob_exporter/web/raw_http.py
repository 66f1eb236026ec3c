"""Raw HTTP requests, and what clients read of the responses."""

import time

GET = b"GET /x HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
GET_KEEP_ALIVE = b"GET /x HTTP/1.1\r\nHost: n\r\n\r\n"


def read_all(client):
    received = []
    while data := client.recv(1 << 20):
        received.append(data)
    return b"".join(received)


def body(answer):
    """The body of a response as it was received."""
    return answer.partition(b"\r\n\r\n")[2]


def request_seconds(send_request, address):
    """How long a request takes."""
    begin = time.perf_counter()
    assert body(send_request(address, GET)) == b"/x\n"
    return time.perf_counter() - begin
