"""Tables on a terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from batchjob_cli import job, jobs
from tests.batchjob_cli.client.local_runs import command_output


def terminal_output(arguments, columns, **environment):
    """What a command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | environment
    argv = [sys.executable, "-m", "batchjob_cli", *arguments]
    with subprocess.Popen(argv, stdout=slave, env=env):
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(master, 4096):
                shown += piece
    os.close(master)
    return shown.decode().replace("\r", "")


def test_table_fits_terminal_width(data):
    for columns in (60, 80, 132):
        lines = terminal_output(["jobs", "--data", data], columns, NO_COLOR="1").splitlines()
        assert len(lines) == 4
        assert max(map(len, lines)) <= columns
        assert lines[0].split()[:2] == ["JOB", "NAME"]
        assert "STATE" in lines[0]


def test_ids_are_short_on_terminal_and_accepted_by_other_commands(data, capsys):
    shown = terminal_output(["jobs", "--data", data, "--state=failed"], 80, NO_COLOR="1")
    short = shown.splitlines()[1].split()[0]
    assert len(short) == 8
    assert f"Job {short}" in command_output(capsys, job, "--data", data, short)
    assert len(command_output(capsys, jobs, "--data", data).splitlines()[1].split()[0]) == 36


def test_states_are_coloured_unless_no_color_is_set(data):
    assert "\x1b[31mfailed" in terminal_output(["jobs", "--data", data], 132, TERM="xterm")
    assert "\x1b" not in terminal_output(["jobs", "--data", data], 132, TERM="xterm", NO_COLOR="1")
