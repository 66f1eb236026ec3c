"""A running server in a thread, for tests that need real sockets."""

import contextlib
import socket
import threading
import time

from batchjob_stats_server.main import create_server, open_listener
from tests.helpers.waiting import scaled


@contextlib.contextmanager
def serving(services, port=0):
    """Run a server with these services and their settings on loopback; gives its port."""
    server = create_server(services.settings, services)
    with open_listener(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield port
        finally:
            server.should_exit = True
            thread.join(scaled(30))


def exchange_bytes(port, *parts, timeout=5.0):
    """Send raw bytes, and return what the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=scaled(timeout)) as client:
        for part in parts:
            client.sendall(part)
        received = b""
        with contextlib.suppress(TimeoutError):
            while chunk := client.recv(65536):
                received += chunk
        return received
