"""The command `batchjob_helper`: answers the exporter's questions that need the kernel's rights.

It listens on the socket that systemd passes, or on a path; peers are root and the exporter's user.
A connection is a line of JSON with a request, and one with the answer, within one deadline.
"""

import contextlib
import errno
import json
import logging
import os
import socket
import struct
import sys
import time
from pathlib import Path

from batchjob.runtime import log as logs
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import LogOptions, Parser, SettingsError, exit_status
from batchjob.runtime.signals import notify
from batchjob_exporter.self_metrics import version_text
from batchjob_exporter.web.addresses import open_listeners, open_systemd_listener
from collectors.kernel.answers import NEEDED, Helper
from collectors.kernel.capabilities import keep

log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 1 << 20
_REQUEST_SECONDS = 2.0  # from the connection to the end of the answer


def main(arguments: list[str] | None = None) -> int:
    """Run the helper until it is killed; exit status 2 for wrong flags, 1 for other errors."""
    try:
        given = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(LogOptions())
        path = given.listen and f"unix:{Path(given.listen).absolute()}"
        listener = open_listeners((path,))[0] if path else open_systemd_listener()
        if path:
            Path(given.listen).chmod(0o666)  # peers are checked by their uid
        keep({name for feature in given.give for name in NEEDED[feature]})
        notify("READY=1")
        # All that it holds in the kernel ends with the process, whatever ends it.
        serve(listener, Helper(vars(given)["path.cgroupfs"], given.give), given.exporter_directory)
    except SettingsError as error:
        print(f"batchjob_helper: {error}", file=sys.stderr)
        return exit_status(error)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="batchjob_helper",
        description="Counts jobs' IO and network in the kernel, and reads their device programs, "
        "for batchjob_exporter.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_text())
    text = "Socket; default: the one that systemd passes."
    parser.add_argument("--listen", metavar="FILE", default="", help=text)
    text = "Directory whose owner may connect besides root (default: %(default)s)."
    directory = "/run/batchjob_exporter"
    parser.add_argument("--exporter-directory", metavar="FILE", default=directory, help=text)
    text = "Mount point of cgroupfs (default: %(default)s)."
    parser.add_argument("--path.cgroupfs", metavar="FILE", default="/sys/fs/cgroup", help=text)
    names, text = sorted(NEEDED), "What to offer (default: everything)."
    parser.add_argument("--give", nargs="+", choices=names, default=names, help=text)
    return parser


def serve(listener: socket.socket, helper: Helper, exporter_directory: str) -> None:
    """Answer one connection after the other, until the listener is shut down."""
    once = LogOnce(log)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):
                return
            time.sleep(0.1)  # out of descriptors
            continue
        with connection, contextlib.suppress(OSError):  # the client has gone, or is too slow
            uid = _peer_uid(connection)
            if uid == 0 or uid == os.stat(exporter_directory).st_uid:
                answer = _answer(helper, _read_line(connection), once)
                connection.sendall(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            else:
                once.warning(f"uid {uid}", "refused a connection of uid %d", uid)


def _peer_uid(connection: socket.socket) -> int:
    """The effective uid of the process at the other end when it connected (unix(7))."""
    form = struct.Struct("3i")  # pid, uid, gid
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return int(form.unpack(credentials)[1])


def _read_line(connection: socket.socket) -> bytes:
    deadline = time.monotonic() + _REQUEST_SECONDS
    received = bytearray()
    while not received.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        data = connection.recv(1 << 16)
        if not data or len(received) > _MAX_REQUEST_BYTES:
            raise OSError("no whole request")
        received += data
    return bytes(received)


def _answer(helper: Helper, line: bytes, once: LogOnce) -> object:
    try:
        return helper.answer(parse_json(line))
    except OSError as error:
        return {"error": error.strerror}
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # one odd request must not end the counters
        once.warning("answer", "%s: %s", type(error).__name__, error)
        return {"error": "internal error"}


if __name__ == "__main__":
    sys.exit(main())
