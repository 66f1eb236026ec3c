"""The unit that keeps `batchjob up` running, as a user's systemd starts and stops it."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import end, free_ports
from tests.helpers.waiting import scaled
from tests.security.remote_up import ROOT

UNIT = (ROOT / "deploy/systemd/user/batchjob_up.service").read_text()


def test_unit_notifies_readiness_and_stops_cleanly(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    found = re.search(r"^ExecStart=(\S+/batchjob) (.*) \$OPTIONS$", UNIT, re.M)
    assert found is not None
    assert "Type=notify" in UNIT
    options = (f"--data={tmp_path / 'data'}", f"--listen-address=127.0.0.1:{port}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(scaled(120))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }  # fmt: skip
        argv = [sys.executable, "-m", "batchjob_cli", *found[2].split(), *options]
        process = subprocess.Popen(argv, env=environment, cwd="/", stdout=subprocess.DEVNULL)
        try:
            while b"READY=1" not in systemd.recv(4096):
                pass
            with socket.create_connection(("127.0.0.1", port), timeout=scaled(60)):
                pass
        finally:
            status = end(process, 60)
    assert status == 0
