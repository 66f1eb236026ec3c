"""Notify systemd of the state of the service (sd_notify(3)); without systemd, do nothing."""

import os
import socket


def notify(state: str) -> None:
    """Send `READY=1`, `STATUS=...`, `STOPPING=1` or `WATCHDOG=1` to the service manager."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return  # the service runs on without a service manager
