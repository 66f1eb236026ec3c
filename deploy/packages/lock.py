"""python -m deploy.packages.lock [--upgrade]

Writes deploy/locked/*.txt: versions and SHA-256 sums of all that packages and images install, for
`pip install --require-hashes`. Needs uv. Without --upgrade versions stay as they are where
pyproject.toml lets them.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence

from deploy.packages.contents import ROOT

LOCKED = ROOT / "deploy/locked"

_EVERYTHING = "build"
SETS = {
    _EVERYTHING: ("packages", "docs", "analysis"),  # `packages` has `all`
    "packaged": ("packaged",),
    "node": ("node",),
    "gpu": ("gpu",),
}
"""File -> extras. The first has everything, and the others its versions."""

BACKEND = "backend"
"""What builds a wheel of the checkout: `build-system.requires` of pyproject.toml."""

_HEADER = "# Made by `python -m deploy.packages.lock`: {what}, with SHA-256 sums.\n"


def main(arguments: Sequence[str]) -> int:
    """Write all files; returns the exit status."""
    if arguments not in ([], ["--upgrade"]):
        print(__doc__)
        return 2
    limits = ["--constraint", f"deploy/locked/{_EVERYTHING}.txt", *arguments]
    for name, extras in SETS.items():
        flags = [flag for extra in extras for flag in ("--extra", extra)]
        what = f"what `[{','.join(extras)}]` installs"
        _compile(name, what, *flags, *(arguments if name == _EVERYTHING else limits))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    backend = "\n".join(project["build-system"]["requires"])
    _compile(BACKEND, "what builds a wheel", *limits, requirements=backend)
    return 0


def _compile(name: str, what: str, *arguments: str, requirements: str = "") -> None:
    """Of pyproject.toml, or of the given requirements."""
    path = LOCKED / f"{name}.txt"
    argv = [
        "uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11",
        "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
        f"--output-file={path}", *arguments, "-" if requirements else "pyproject.toml",
    ]  # fmt: skip
    done = subprocess.run(  # noqa: S603 (our own arguments)
        argv, cwd=ROOT, input=requirements, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}.txt: {done.stderr.strip()}")
    path.write_text(_HEADER.format(what=what) + path.read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
