"""Run inside User Mode Linux by `uml.run`, with systemd: limits of a user without delegated cgroup.

Writes what test_runs_cgroup2_uml.py looks at.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.guest_runs import ALICE, BURN, PYTHON, copy_library, run_once

RUNTIME = {"XDG_RUNTIME_DIR": f"/run/user/{ALICE}"}


def main() -> None:
    """Run all, and report."""
    out = Path(sys.argv[1])
    copy_library()
    data = Path(f"/run/data-{ALICE}")
    data.mkdir()
    os.chown(data, ALICE, ALICE)

    def run(*arguments: str, **environment: str) -> Mapping[str, Any]:
        """`batchjob run` as alice, in a session of the system's, as after a log-in."""
        return run_once(data, *arguments, uid=ALICE, env={**os.environ, **environment}, cwd="/tmp")

    cat, hold = "cat /proc/self/cgroup", f"{PYTHON} -c 'x = bytearray(200 << 20)'"
    report = {"without": run("--memory", "80M", "--", "sh", "-c", cat, **RUNTIME)}
    subprocess.run(["systemctl", "start", f"user@{ALICE}.service"], check=True)
    report |= {
        "memory": run("--memory", "80M", "--", "sh", "-c", f"{cat}; {hold}", **RUNTIME),
        "cpus": run("--strict", "--cpus", "0.3", "--", "sh", "-c", BURN.format(0.6), **RUNTIME),
        "status": run("--memory", "80M", "--", "sh", "-c", "pwd; env; cat; exit 7", **RUNTIME),
        "detached": run("--detach", "--memory", "1G", "--", "true", **RUNTIME),
        "unreachable": run("--memory", "80M", "--", "true"),
    }  # fmt: skip
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
