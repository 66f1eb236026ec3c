"""python -m deploy.packages.build [--output dist] [--python /usr/bin/python3] WHAT ...

WHAT is wheel, sdist, one-file, deb or rpm; default: all for which there are tools. Packages for a
distribution are built on it, or with `--python` naming an interpreter of its minor version. A bill
of materials (CycloneDX) for each package and SHA256SUMS are written beside them. The same checkout
gives the same bytes, whatever directory, user or day; its date is SOURCE_DATE_EPOCH, or the last
commit's.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
import zipapp
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.packages import sbom
from deploy.packages.contents import (
    HOME,
    PACKAGES,
    ROOT,
    install,
    run,
    settle,
    source_date,
    stage,
    version,
)
from deploy.packages.formats import build_deb, build_rpm

KINDS = ("wheel", "sdist", "one-file", "deb", "rpm")
_TOOLS = {"deb": "dpkg-deb", "rpm": "rpmbuild"}


def main(arguments: list[str] | None = None) -> int:
    """Build; returns the exit status."""
    parser = argparse.ArgumentParser(prog="deploy.packages.build", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", default="/usr/bin/python3", help="The distribution's Python.")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=", ".join(KINDS))
    given = parser.parse_args(arguments)
    wanted = given.what or KINDS
    for kind in wanted:
        if kind not in KINDS:
            raise SystemExit(f"{kind}: expected one of {', '.join(KINDS)}")
    missing = [kind for kind in wanted if kind in _TOOLS and not shutil.which(_TOOLS[kind])]
    for kind in missing:
        print(f"{kind}: {_TOOLS[kind]} is not installed", file=sys.stderr)
    if missing and given.what:
        return 1
    wanted = [kind for kind in wanted if kind not in missing]
    os.environ["SOURCE_DATE_EPOCH"] = str(source_date())
    os.environ["TZ"] = "UTC"  # for dates in manual pages and times in zip archives
    time.tzset()
    os.umask(0o022)
    given.output.mkdir(parents=True, exist_ok=True)
    output = given.output.resolve()
    wheel = _distribution("wheel", output)
    made = []
    for path in _built(wanted, wheel, given.python, output):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)
        made.append(path)
    _sums(made, output / "SHA256SUMS")
    return 1 if missing else 0


def _sums(paths: Sequence[Path], target: Path) -> None:
    """The input of `sha256sum --check`."""
    rows = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(paths, key=lambda path: path.name)
    ]
    target.write_text("".join(rows))


def _distribution(kind: str, output: Path) -> Path:
    argv = (sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(output))
    run(*argv, str(ROOT))
    pattern = {"wheel": "*.whl", "sdist": "*.tar.gz"}[kind]
    return max(output.glob(f"batchjob_monitoring-{pattern}"), key=lambda path: path.stat().st_mtime)


_BUILDERS = {"deb": build_deb, "rpm": build_rpm}


def _built(kinds: Sequence[str], wheel: Path, python: str, output: Path) -> Iterator[Path]:
    if "wheel" in kinds:
        yield wheel
    if "sdist" in kinds:
        yield _distribution("sdist", output)
    if "one-file" in kinds:
        yield _one_file(wheel, output)
    wanted = [build for kind, build in _BUILDERS.items() if kind in kinds]
    for package in PACKAGES if wanted else ():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            tree.mkdir(mode=0o755)
            stage(package, wheel, python, tree)
            site = next((tree / HOME / package.environment).glob("lib/*/site-packages"))
            bill = output / f"{package.name}-{version()}.cdx.json"
            yield sbom.write(package.name, site, source_date(), bill)
            for build in wanted:
                yield build(package, tree, python, output)


_ONE_FILE_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("batchjob_exporter: expected Python 3.11 or newer, got " + sys.version.split()[0])

from batchjob_exporter.main import main

sys.exit(main())
"""
_LEFT_OUT = ("*.so", "*.dist-info", "bin", "batchjob_cli", "batchjob_stats_db",
             "batchjob_stats_server")  # fmt: skip


def _one_file(wheel: Path, output: Path) -> Path:
    """The exporter as one file: a zip archive that Python runs directly.

    Nothing is unpacked, so it works with a /tmp mounted noexec. Compiled modules cannot be imported
    from an archive and are not included: bcrypt (passwords of the web file) and pyghmi's
    cryptography. The same inputs give the same bytes. Raises SystemExit.
    """
    with tempfile.TemporaryDirectory() as folder:
        install("gpu", wheel, Path(folder))
        for pattern in _LEFT_OUT:
            for path in list(Path(folder).rglob(pattern)):
                run("rm", "-r", str(path))
        Path(folder, "__main__.py").write_text(_ONE_FILE_MAIN)
        settle(Path(folder))
        target = output / "batchjob_exporter.pyz"
        zipapp.create_archive(folder, target, "/usr/bin/env python3", compressed=True)
        target.chmod(0o755)
    return target


if __name__ == "__main__":
    sys.exit(main())
