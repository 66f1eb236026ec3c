"""An nginx of its own for a test, on loopback, with its files in one folder."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.processes import daemon

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def missing() -> str:
    """Why none can be started on this machine, or nothing."""
    return "" if shutil.which("nginx") else "not installed: nginx"


@contextlib.contextmanager
def running(folder: Path, blocks: str) -> Iterator[None]:
    """Start it; `blocks`: what `http` has in its configuration, `server` above all."""
    places = "".join(f"{name}_temp_path {folder}/{name};\n" for name in _TEMPORARY)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n"
        + ("user root;\n" if os.geteuid() == 0 else "")
        + f"events {{}}\nhttp {{\naccess_log off;\n{places}{blocks}}}\n"
    )
    with daemon(["nginx", "-c", f"{folder}/nginx.conf"], folder / "nginx.log"):
        yield
