"""Example jobs with different behaviour, to be seen on their pages."""

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_PATIENCE_SECONDS = 30.0


# Name of an example job, its options of `batchjob run`, and a Python program.
DEMOS = (
    (
        "busy",
        ("--cpus=1", "--memory=256M"),
        "import time\nend = time.time() + 120\nwhile time.time() < end: sum(range(10_000))",
    ),
    ("idle", ("--cpus=2", "--memory=1G"), "import time\ntime.sleep(180)"),
    (
        "memory-hungry",
        ("--cpus=1", "--memory=512M"),
        "import time\nheld = []\n"
        "for step in range(60):\n    held.append(bytearray(4 << 20)); print(step, flush=True)\n"
        "    time.sleep(2)",
    ),
    (
        "input-output",
        ("--cpus=1", "--memory=256M"),
        "import os, tempfile, time\nwith tempfile.TemporaryFile(dir='.') as file:\n"
        "    for step in range(100):\n        file.seek(0); file.write(os.urandom(8 << 20))\n"
        "        file.flush(); os.fsync(file.fileno()); time.sleep(1)",
    ),
    (
        "failing",
        ("--cpus=1", "--memory=128M"),
        "import sys, time\ntime.sleep(5)\nprint('no such input: data.csv', file=sys.stderr)\n"
        "sys.exit(3)",
    ),
)


def start(data: Path) -> list[subprocess.Popen[str]]:
    """Start them in the background, all at once; each prints its id when it has started."""
    scratch = data / "demo"
    scratch.mkdir(mode=0o700, exist_ok=True)
    processes = []
    for name, options, program in DEMOS:
        argv = [
            sys.executable, "-m", "batchjob_cli", "run", "--server=", "--detach",
            "--data", str(data), "--name", name, *options,
            "--", sys.executable, "-c", program,
        ]  # fmt: skip
        with contextlib.suppress(OSError):
            processes.append(
                subprocess.Popen(  # noqa: S603 (fixed command)
                    argv, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
    return processes


def wait_for_ids(processes: Iterable[subprocess.Popen[str]]) -> list[str]:
    """The ids of those that could be started, once each has started or failed."""
    ids = []
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
            if process.returncode == 0:
                ids.append(output.strip())
    return ids
