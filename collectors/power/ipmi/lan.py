"""A BMC over the network: a session in a child process that can be killed."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from batchjob.runtime.json_reader import parse_json
from collectors.power.ipmi.message import Request, payload
from collectors.power.meter import BmcError, read_password

_PROGRAM = os.path.join(os.path.dirname(__file__), "lan_session.py")
LOGIN_SECONDS = 15.0  # starting Python takes time, and a silent BMC times out after up to 6 s
_EXIT_SECONDS = 1.5
PRIVILEGES = {"callback": 1, "user": 2, "operator": 3, "administrator": 4}


class LanSession:
    """A logged-in child process; a request that exceeds its deadline ends it."""

    def __init__(self, host: str, port: int, user: str, password_file: str, privilege: str) -> None:
        """Log in; the password is read from its file at each login."""
        self._name = f"{user}@{host}:{port}"
        login_request = {
            "host": host,
            "port": port,
            "user": user,
            "password": read_password(password_file),
            "privilege": PRIVILEGES[privilege],
        }
        self.process = subprocess.Popen(  # noqa: S603 (our own program; secrets go to its stdin)
            [sys.executable, "-P", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._exchange(login_request, LOGIN_SECONDS)

    def query(self, request: Request, timeout: float) -> bytes:
        netfn, command, data, lun = request
        message = {"netfn": netfn, "command": command, "data": data.hex(), "lun": lun}
        return payload(request, self._exchange(message, timeout))

    def close(self) -> None:
        """Let the child log out, or kill it."""
        with contextlib.suppress(OSError):  # already exited
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        self._kill()

    def _exchange(self, request: dict[str, Any], timeout: float) -> bytes:
        try:
            answer = parse_json(self._exchange_line(request, timeout))
            if "error" in answer:
                raise BmcError(answer["error"], f"{self._name}: {answer['text']}")
            return bytes.fromhex(answer["answer"])
        except (OSError, ValueError) as error:  # broken pipe, or closed by another thread
            self._kill()
            raise BmcError("session", f"{self._name}: the session process exited") from error
        except BmcError:
            self._kill()
            raise

    def _exchange_line(self, request: dict[str, Any], timeout: float) -> bytes:
        """Write a request, and read a line within `timeout` seconds."""
        self._stdin.write(json.dumps(request).encode() + b"\n")
        self._stdin.flush()
        deadline, line = time.monotonic() + timeout, b""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                raise BmcError("timeout", f"{self._name}: no answer within {timeout:g} s")
            chunk = os.read(self._stdout.fileno(), 4096)
            if not chunk:
                raise OSError("end of output")
            line += chunk
        return line

    def _kill(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # unwritten data has no reader any more
                pipe.close()
