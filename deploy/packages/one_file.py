"""The exporter as one file: a zip archive that Python runs directly.

Nothing is unpacked, so it works with a /tmp mounted noexec. Compiled modules cannot be imported
from an archive and are not included: bcrypt (passwords of the web file) and pyghmi's cryptography.
"""

import tempfile
import zipapp
from pathlib import Path

from deploy.packages.contents import install, run, settle

NAME = "batchjob_exporter.pyz"

_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("batchjob_exporter: expected Python 3.11 or newer, got " + sys.version.split()[0])

from batchjob_exporter.main import main

sys.exit(main())
"""
_LEFT_OUT = ("*.so", "*.dist-info", "bin", "batchjob_cli", "batchjob_stats_db",
             "batchjob_stats_server")  # fmt: skip


def build(wheel: Path, output: Path) -> Path:
    """Write `batchjob_exporter.pyz`, the same bytes for the same inputs; raises SystemExit."""
    with tempfile.TemporaryDirectory() as folder:
        install("gpu", wheel, Path(folder))
        for pattern in _LEFT_OUT:
            for path in list(Path(folder).rglob(pattern)):
                run("rm", "-r", str(path))
        Path(folder, "__main__.py").write_text(_MAIN)
        settle(Path(folder))
        target = output / NAME
        zipapp.create_archive(folder, target, "/usr/bin/env python3", compressed=True)
        target.chmod(0o755)
    return target
