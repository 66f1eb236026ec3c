"""python -m deploy.packages.build [--output dist] [--python /usr/bin/python3] WHAT ...

WHAT is wheel, sdist, one-file, deb or rpm; without any, all of them. Packages for a distribution
are built on it, or with `--python` naming an interpreter of its minor version.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.packages import deb, one_file, rpm
from deploy.packages.contents import PACKAGES, ROOT, interpreter, run, stage

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
        if kind in _TOOLS and shutil.which(_TOOLS[kind]) is None:
            raise SystemExit(f"{kind}: {_TOOLS[kind]} is not installed")
    given.output.mkdir(parents=True, exist_ok=True)
    output = given.output.resolve()
    wheel = _distribution("wheel", output)
    for path in _built(wanted, wheel, given.python, output):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)
    return 0


def _distribution(kind: str, output: Path) -> Path:
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", str(output), str(ROOT))
    pattern = {"wheel": "*.whl", "sdist": "*.tar.gz"}[kind]
    return max(output.glob(f"batchjob_monitoring-{pattern}"), key=lambda path: path.stat().st_mtime)


_BUILDERS = {"deb": deb.build, "rpm": rpm.build}


def _built(kinds: Sequence[str], wheel: Path, python: str, output: Path) -> Iterator[Path]:
    if "wheel" in kinds:
        yield wheel
    if "sdist" in kinds:
        yield _distribution("sdist", output)
    if "one-file" in kinds:
        yield one_file.build(wheel, output)
    wanted = [build for kind, build in _BUILDERS.items() if kind in kinds]
    for package in PACKAGES if wanted else ():
        distribution = interpreter(python)
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            tree.mkdir(mode=0o755)
            stage(package, wheel, distribution, tree)
            for build in wanted:
                yield build(package, tree, distribution, output)


if __name__ == "__main__":
    sys.exit(main())
