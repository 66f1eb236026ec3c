"""What is in each package, and the tree of files it becomes.

A package brings its dependencies in a virtual environment of its own below /opt/batchjob, so that
it neither needs nor disturbs the distribution's Python packages. The interpreter is the
distribution's. Compiled dependencies are of one minor version of Python, hence so is the package.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from batchjob import __version__
from deploy.packages import manuals

ROOT = Path(__file__).parents[2]
HOME = "opt/batchjob"


class Package(NamedTuple):
    """A package by what it installs."""

    name: str
    summary: str
    extra: str  # of pyproject.toml
    environment: str  # its directory below /opt/batchjob
    commands: Mapping[str, str]  # name -> module that has main()
    units: tuple[str, ...]
    configuration: Mapping[str, str]  # below /etc -> file in deploy/config
    user: str = ""  # made on installation
    needs: str = ""  # another package of the same version

    def documented(self) -> dict[str, str]:
        """The commands that this package brings pages for: `batchjob` is the exporter package's."""
        return {name: module for name, module in self.commands.items() if self.linked(name)}

    def linked(self, command: str) -> bool:
        """Whether the command's place in /opt/batchjob/bin is this package's."""
        return command != SHARED or not self.needs


SHARED = "batchjob"
"""A command of both packages: with the server's installed it has more to work with."""


EXPORTER = Package(
    "batchjob-exporter",
    "Metrics of batch jobs for Prometheus",
    "node",
    "exporter",
    {"batchjob_exporter": "batchjob_exporter.main", "batchjob": "batchjob_cli.main"},
    ("batchjob_exporter.service",),
    {"default/batchjob_exporter": "batchjob_exporter.default"},
)
SERVER = Package(
    "batchjob-server",
    "Records of batch jobs, and the server that shows them",
    "all",
    "server",
    {
        "batchjob_stats_db": "batchjob_stats_db.main",
        "batchjob_stats_server": "batchjob_stats_server.main",
        "batchjob": "batchjob_cli.main",
    },
    ("batchjob_stats_db.service", "batchjob_stats_server.service"),
    {"batchjob/stats_db.yml": "stats_db.yml", "batchjob/server.yml": "server.yml"},
    user="batchjob",
    needs="batchjob-exporter",
)
PACKAGES = (EXPORTER, SERVER)


class Interpreter(NamedTuple):
    """The distribution's Python."""

    path: str
    version: str  # 3.11


def interpreter(path: str) -> Interpreter:
    """Ask it for its version; raises SystemExit where it is too old or not there."""
    program = (
        "import sys; print('%d.%d' % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))"
    )
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 (named by the caller)
    except OSError as error:
        raise SystemExit(f"--python: {path}: {error.strerror}") from error
    if done.returncode:
        raise SystemExit(f"--python: {path}: expected Python 3.11 or newer")
    return Interpreter(path, done.stdout.strip())


def stage(package: Package, wheel: Path, python: Interpreter, tree: Path) -> None:
    """Fill `tree` with the files of the package, as they will lie below `/`."""
    environment = tree / HOME / package.environment
    _environment(environment, package, wheel, python)
    for command, module in package.commands.items():
        _command(tree, package, command, module)
    for unit in package.units:
        _copy(ROOT / "deploy/systemd" / unit, tree / "usr/lib/systemd/system" / unit)
    for target, source in package.configuration.items():
        _copy(ROOT / "deploy/config" / source, tree / "etc" / target)
    for page, text in manuals.manuals(package.documented()).items():
        _write(tree / "usr/share/man/man1" / page, text)
    for shell, directory in manuals.COMPLETIONS.items():
        for command, text in manuals.completions(package.documented(), shell).items():
            name = f"_{command}" if shell == "zsh" else command
            _write(tree / directory / name, text)
    documents = tree / "usr/share/doc" / package.name
    _copy(ROOT / "LICENSE", documents / "copyright")
    _copy(ROOT / "CHANGELOG.md", documents / "CHANGELOG.md")


def _environment(folder: Path, package: Package, wheel: Path, python: Interpreter) -> None:
    """A virtual environment (PEP 405) that will be at home in /opt/batchjob."""
    site = folder / f"lib/python{python.version}/site-packages"
    site.mkdir(parents=True)
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
        "--no-compile", "--only-binary=:all:", "--python-version", python.version,
        "--target", str(site), f"{wheel}[{package.extra}]",
    )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)  # their first line names this machine's Python
    _write(
        folder / "pyvenv.cfg",
        f"home = {os.path.dirname(python.path)}\n"
        f"include-system-site-packages = false\nversion = {python.version}\n",
    )
    (folder / "bin").mkdir()
    # By its minor version: another one could not import the compiled dependencies.
    directory = os.path.dirname(python.path)
    (folder / "bin/python").symlink_to(os.path.join(directory, f"python{python.version}"))
    at_home = f"/{HOME}/{package.environment}/{site.relative_to(folder)}"
    # By content, not by time: the files' times change on the way.
    run(
        python.path, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash",
        "-s", str(site), "-p", at_home, str(site),
    )  # fmt: skip


_COMMAND = """\
#!/{home}/{environment}/bin/python -I
import sys

from {module} import main

sys.exit(main())
"""


_CHOICE = """\
#!/bin/sh
for environment in server exporter; do
    command=/{home}/$environment/bin/{name}
    [ -x "$command" ] && exec "$command" "$@"
done
echo "{name}: /{home}/exporter/bin/{name} is missing" >&2
exit 127
"""


def _command(tree: Path, package: Package, name: str, module: str) -> None:
    inside = tree / HOME / package.environment / "bin" / name
    _write(inside, _COMMAND.format(home=HOME, environment=package.environment, module=module))
    inside.chmod(0o755)
    if not package.linked(name):
        return
    shown = tree / HOME / "bin" / name
    if name == SHARED:
        _write(shown, _CHOICE.format(home=HOME, name=name))
        shown.chmod(0o755)
    else:
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.symlink_to(f"../{package.environment}/bin/{name}")
    link = tree / "usr/bin" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"/{HOME}/bin/{name}")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(*argv: str, **environment: str) -> None:
    """Run a tool of the build; raises SystemExit with what it said."""
    done = subprocess.run(  # noqa: S603 (tools of the build, and our own arguments)
        argv, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")


def version() -> str:
    """The version that packages carry; Debian and RPM sort `~` before the release."""
    return __version__.replace(".dev", "~dev").replace("a", "~a").replace("rc", "~rc")
