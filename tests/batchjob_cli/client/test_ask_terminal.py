"""Tables on a terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from batchjob_cli import job, jobs
from batchjob_cli.client.table import fold
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


TABLES_AND_REPORTS = (
    ["jobs", "-o", "jobid,name,user,state,start_time,elapsed_seconds"],
    ["stats"], ["stats", "--by", "user"], ["job", "plot\x1b[2J"], ["seff", "plot\x1b[2J"],
)  # fmt: skip


@pytest.mark.parametrize("arguments", TABLES_AND_REPORTS, ids=" ".join)
def test_tables_and_reports_fit_into_60_columns(data, arguments):
    shown = terminal_output([*arguments, "--data", data], 60, NO_COLOR="1")
    assert max(map(len, shown.splitlines())) <= 60, shown


def test_a_submit_line_is_whole_on_any_terminal():
    line = "  Submit    sbatch --nodes=1 --ntasks-per-node=16 --mem=26624M --time=2:30:00 run.sh"
    wide = "  Saves     214 GiB for 1 h 20 min, and 21 h of a well-known time limit of the job"
    folded = fold(f"{line}\n{wide}", 60).splitlines()
    assert folded[0] == line
    assert [len(each) <= 60 for each in folded[1:]] == [True, True]
    assert "well-known" in " ".join(folded[1:])


def test_findings_of_doctor_are_wrapped_at_the_terminals_width(data):
    lines = terminal_output(["doctor"], 60).splitlines()
    wide = [line[32:].removeprefix("-> ").strip() for line in lines if len(line) > 60]
    assert [text for text in wide if " " in text] == []  # commands and paths stay whole


def test_ids_are_short_on_terminal_and_accepted_by_other_commands(data, capsys):
    shown = terminal_output(["jobs", "--data", data, "--state=failed"], 80, NO_COLOR="1")
    short = shown.splitlines()[1].split()[0]
    assert len(short) == 8
    assert f"Job {short}" in command_output(capsys, job, "--data", data, short)
    assert len(command_output(capsys, jobs, "--data", data).splitlines()[1].split()[0]) == 36


def test_states_are_coloured_unless_no_color_is_set(data):
    assert "\x1b[31mfailed" in terminal_output(["jobs", "--data", data], 132, TERM="xterm")
    assert "\x1b" not in terminal_output(["jobs", "--data", data], 132, TERM="xterm", NO_COLOR="1")
