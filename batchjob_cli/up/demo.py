"""Jobs to look at: each does one thing that its page then shows."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Demo(NamedTuple):
    """A job by its name, its options of `batchjob run`, and a Python program."""

    name: str
    options: tuple[str, ...]
    program: str


DEMOS = (
    Demo(
        "busy",
        ("--cpus=1", "--memory=256M"),
        "import time\nend = time.time() + 120\nwhile time.time() < end: sum(range(10_000))",
    ),
    Demo("idle", ("--cpus=2", "--memory=1G"), "import time\ntime.sleep(180)"),
    Demo(
        "memory-hungry",
        ("--cpus=1", "--memory=512M"),
        "import time\nheld = []\n"
        "for step in range(60):\n    held.append(bytearray(4 << 20)); print(step, flush=True)\n"
        "    time.sleep(2)",
    ),
    Demo(
        "input-output",
        ("--cpus=1", "--memory=256M"),
        "import os, tempfile, time\nwith tempfile.TemporaryFile(dir='.') as file:\n"
        "    for step in range(100):\n        file.seek(0); file.write(os.urandom(8 << 20))\n"
        "        file.flush(); os.fsync(file.fileno()); time.sleep(1)",
    ),
    Demo(
        "failing",
        ("--cpus=1", "--memory=128M"),
        "import sys, time\ntime.sleep(5)\nprint('no such input: data.csv', file=sys.stderr)\n"
        "sys.exit(3)",
    ),
)


def start(data: Path) -> list[str]:
    """Start them in the background; the ids of those that could be started."""
    scratch = data / "demo"
    scratch.mkdir(mode=0o700, exist_ok=True)
    begun = []
    for demo in DEMOS:
        argv = [
            sys.executable, "-m", "batchjob_cli", "run", "--server=", "--detach",
            "--data", str(data), "--name", demo.name, "--best-effort", *demo.options,
            "--", sys.executable, "-c", demo.program,
        ]  # fmt: skip
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 (our own command)
                argv, cwd=scratch, capture_output=True, text=True, timeout=30, check=True
            )
            begun.append(done.stdout.strip())
    return begun
