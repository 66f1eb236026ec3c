"""`batchjob run` at a terminal."""

import os
import pty
import select
import signal
import time

import pytest

from tests.batchjob_cli.run.conftest import PROGRAM, heed_signals
from tests.helpers.waiting import scaled, until


class Terminal:
    """A shell's side of a terminal: what is typed, what is seen."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            heed_signals()
            os.environ.update(environment)
            os.execvp("bash", ["bash", "--norc", "-i"])
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str, seconds: float = 20.0) -> bytes:
        end = time.monotonic() + scaled(seconds)
        while text.encode() not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)
        before, _, self.seen = self.seen.partition(text.encode())
        return before

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(batchjob):
    shell = Terminal(batchjob.environment | {"PS1": "", "TERM": "dumb"})
    program = f"{PROGRAM[0]} -c '{PROGRAM[2]}'"
    shell.type(f"batchjob() {{ {program} \"$@\"; }}; stty -echo; echo re''ady\n")
    shell.expect("ready")
    yield shell
    shell.close()


def test_command_has_terminal_streams(terminal):
    terminal.type("batchjob run --quiet -- sh -c 'test -t 0 -a -t 1 -a -t 2 && echo all-three'\n")
    terminal.expect("all-three\r\n")


def test_command_sees_terminal_size(terminal):
    terminal.type("stty rows 33 cols 77; batchjob run --quiet -- sh -c 'stty size <&1'\n")
    terminal.expect("33 77\r\n")


def test_ctrl_c_reaches_command_once(terminal, batchjob):
    script = 'n=0; trap "n=\\$((n+1)); echo caught \\$n" INT; echo go; sleep 1; sleep 1; exit 7'
    terminal.type(f"batchjob run --quiet -- bash -c '{script}'; echo status $?\n")
    terminal.expect("go\r\n")
    time.sleep(0.2)
    terminal.type("\x03")
    terminal.expect("caught 1")
    assert b"caught 2" not in terminal.expect("status 7")
    assert batchjob.output().startswith(b"go\n")


def test_suspend_and_resume(terminal, batchjob):
    terminal.type("batchjob run --quiet -- sh -c 'echo begun; sleep 1; echo ended'\n")
    terminal.expect("begun")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.type("fg\n")
    terminal.expect("ended")
    until(lambda: batchjob.record()["state"] == "COMPLETED")


def test_pipeline_members_keep_terminal(terminal):
    terminal.type("batchjob run --quiet -- echo from-run | (read x; read y </dev/tty; echo $x$y)\n")
    time.sleep(0.5)
    terminal.type("typed\n")
    terminal.expect("from-runtyped")


def test_command_reads_terminal_input(terminal):
    terminal.type("batchjob run --quiet -- sh -c 'read x; echo got $x'\n")
    time.sleep(0.7)
    terminal.type("words\n")
    terminal.expect("got words")
