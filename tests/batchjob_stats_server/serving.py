"""The server as it runs, in a thread, for tests that speak over real sockets."""

import contextlib
import socket
import threading
import time

from batchjob_stats_server.main import create_server, open_listener


@contextlib.contextmanager
def serving(services, port=0):
    """The port on loopback at which `services` answer by their own settings."""
    made = create_server(services.settings, services)
    with open_listener(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not made.started and thread.is_alive():
                time.sleep(0.01)
            yield port
        finally:
            made.should_exit = True
            thread.join(30)


def spoken(port, *pieces, wait=5.0):
    """What comes back until the server hangs up, for bytes sent as they are."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as client:
        for piece in pieces:
            client.sendall(piece)
        received = b""
        with contextlib.suppress(TimeoutError):
            while chunk := client.recv(65536):
                received += chunk
        return received
