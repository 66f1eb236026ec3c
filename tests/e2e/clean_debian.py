"""A clean Debian with our packages or a checkout in it; needs root and Debian's archive."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e import booted
from tests.helpers.processes import call

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
TOOLS = ("mmdebstrap", "dpkg-deb", "rpmbuild", "unshare", "setpriv")


def missing() -> str:
    """Why none can be made here, or nothing."""
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "only root installs packages"
    if sys.version_info[:2] != _version_of(PYTHON):
        return f"{PYTHON} has another minor version than these tests"
    return booted.missing()


def _version_of(python: str) -> tuple[int, ...]:
    program = "import sys; print('%d %d' % sys.version_info[:2])"
    return tuple(map(int, call(python, "-c", program).split()))


def python_package() -> str:
    """The Debian package of the interpreter that these tests and our packages have."""
    return "python" + ".".join(map(str, _version_of(PYTHON)))


def make(root: Path, *packages: str) -> None:
    """Fill a directory with the host's release of Debian: the least there is, and `packages`."""
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
    assert codename
    every = ",".join(("systemd", "dbus", *packages))
    call("mmdebstrap", "--variant=minbase", f"--include={every}", codename[1], str(root))
    # Whoever types says yes.
    (root / "etc/apt/apt.conf.d/90yes").write_text('APT::Get::Assume-Yes "true";\n')


def build(output: Path, *kinds: str) -> None:
    """Our packages, of this checkout; all kinds unless some are named."""
    argv = (sys.executable, "-m", "deploy.packages.build", "--output", str(output))
    call(*argv, "--python", PYTHON, *kinds, cwd=ROOT)


def copy_checkout(folder: Path) -> None:
    """What git knows of this checkout, as it is now."""
    folder.mkdir(parents=True)
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def collect_wheels(folder: Path, extra: str) -> dict[str, str]:
    """What `pip install '.[extra]'` fetches; pip's environment that finds it as `/wheels`."""
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder))
    call(*pip, f"{ROOT}[{extra}]", "hatchling")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
