"""The contents of each package, and the tree of files to install.

A package contains its dependencies in a virtual environment of its own below /opt/batchjob, so that
it neither needs nor affects the distribution's Python packages. The interpreter is the
distribution's. Compiled dependencies are for one minor version of Python, and so is the package.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from batchjob import __version__
from batchjob_cli import manuals

ROOT = Path(__file__).parents[2]
HOME = "opt/batchjob"
_HATCHLINGS_DATE = 1_580_601_600  # hatchling.builders.utils, DEFAULT_TIMESTAMP


class Package(NamedTuple):
    """A package and what it installs."""

    name: str
    summary: str
    extra: str  # in pyproject.toml
    environment: str  # its directory below /opt/batchjob
    commands: Mapping[str, str]  # name -> module that has main()
    units: tuple[str, ...]
    configuration: Mapping[str, str]  # below /etc -> file in deploy/config
    user: str = ""  # created on installation
    needs: str = ""  # another package of the same version
    user_units: tuple[str, ...] = ()  # in deploy/systemd/user
    # Created on installation, and at boot if they are missing then: path, mode (octal, as in
    # tmpfiles.d(5) and install(1)), owner and group.
    directories: tuple[tuple[str, str, str], ...] = ()
    scripts: Mapping[str, str] = {}  # below /usr/libexec/batchjob -> file in deploy/
    examples: Mapping[str, str] = {}  # below /usr/share/batchjob -> path in the repository

    def enabled(self) -> tuple[str, ...]:
        """Units for `systemctl enable`; the others are started by these."""
        return tuple(unit for unit in self.units if unit not in (BACKUP, HELPER))

    def restarted(self) -> tuple[str, ...]:
        """Units that run the programs of this package permanently."""
        return tuple(unit for unit in self.units if unit.endswith(".service") and unit != BACKUP)

    def documented(self) -> dict[str, str]:
        """The commands with manual pages in this package: `batchjob` is in the exporter package."""
        return {name: module for name, module in self.commands.items() if self.linked(name)}

    def linked(self, command: str) -> bool:
        """Whether this package owns the command in /opt/batchjob/bin."""
        return command != SHARED or not self.needs


HELPER = "batchjob_helper.service"
"""Started by its socket."""

BACKUP = "batchjob_backup.service"
"""Runs for a moment, started by its timer."""

SHARED = "batchjob"
"""A command of both packages: with the server's installed it has more to work with."""


EXPORTER = Package(
    "batchjob-exporter",
    "Metrics of batch jobs for Prometheus",
    "node",
    "exporter",
    {
        "batchjob_exporter": "batchjob_exporter.main",
        "batchjob_helper": "batchjob_exporter.helper",
        "batchjob": "batchjob_cli.main",
    },
    ("batchjob_exporter.service", HELPER, "batchjob_helper.socket"),
    {"default/batchjob_exporter": "batchjob_exporter.default"},
    directories=(("/run/batchjob-gpus", "0755", "root"),),
    scripts={
        name: f"slurm/{name}" for name in ("gpu_prolog.sh", "gpu_epilog.sh", "report_epilog.sh")
    },
)
SERVER = Package(
    "batchjob-server",
    "Records of batch jobs, and the server that shows them",
    "packaged",
    "server",
    {
        "batchjob_stats_db": "batchjob_stats_db.main",
        "batchjob_stats_server": "batchjob_stats_server.main",
        "batchjob": "batchjob_cli.main",
    },
    (
        "batchjob_stats_db.service",
        "batchjob_stats_server.service",
        "batchjob_cluster.service",
        BACKUP,
        "batchjob_backup.timer",
    ),
    {
        "batchjob/stats_db.yml": "stats_db.yml",
        "batchjob/server.yml": "server.yml",
        "batchjob/cluster.yml": "cluster.yml",
    },
    user="batchjob",
    needs="batchjob-exporter",
    user_units=("batchjob_up.service",),
    directories=(
        ("/var/lib/batchjob", "0750", "batchjob"),
        ("/var/backups/batchjob", "0700", "batchjob"),
    ),
    examples={
        "prometheus/prometheus.yml": "prometheus/prometheus.yml",
        "prometheus/rules": "prometheus/rules",
        "prometheus/other_names": "prometheus/other_names",
        "grafana/dashboards": "grafana/dashboards",
        "grafana/provisioning": "grafana/provisioning",
        "victoriametrics": "deploy/victoriametrics",
        "logs": "deploy/logs",
    },
)
PACKAGES = (EXPORTER, SERVER)


@cache
def python_version(path: str) -> str:
    """The version (`3.11`) of the distribution's Python; raises SystemExit if it is too old."""
    program = (
        "import sys; print('%d.%d' % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))"
    )
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 (named by the caller)
    except OSError as error:
        raise SystemExit(f"--python: {path}: {error.strerror}") from error
    if done.returncode:
        raise SystemExit(f"--python: {path}: expected Python 3.11 or newer")
    return done.stdout.strip()


def stage(package: Package, wheel: Path, python: str, tree: Path) -> None:
    """Fill `tree` with the files of the package, relative to `/`."""
    environment = tree / HOME / package.environment
    _environment(environment, package, wheel, python)
    for command, module in package.commands.items():
        _command(tree, package, command, module)
    _systemd(package, tree)
    for target, source in package.scripts.items():
        _copy(ROOT / "deploy" / source, tree / "usr/libexec/batchjob" / target)
        (tree / "usr/libexec/batchjob" / target).chmod(0o755)
    for target, source in package.examples.items():
        _copy_all(ROOT / source, tree / "usr/share/batchjob" / target)
    for target, source in package.configuration.items():
        _copy(ROOT / "deploy/config" / source, tree / "etc" / target)
    _documents(package, tree)
    settle(tree)


def install(locked: str, wheel: Path, site: Path, *flags: str) -> None:
    """Install the wheel into a directory, with the dependencies in deploy/locked and no others."""
    pip = (
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
        "--no-compile", "--no-deps", "--target", str(site), *flags,
    )  # fmt: skip
    run(*pip, "--require-hashes", "-r", str(ROOT / "deploy/locked" / f"{locked}.txt"))
    # Their shebang lines name this machine's Python.
    shutil.rmtree(site / "bin", ignore_errors=True)
    run(*pip, "--no-index", str(wheel))
    shutil.rmtree(site / "bin")
    for record in site.glob("*.dist-info/RECORD"):
        _forget_this_machine(record)


def _forget_this_machine(record: Path) -> None:
    """Remove paths of this machine: from scripts, and the location of the wheel."""
    record.with_name("direct_url.json").unlink(missing_ok=True)
    kept = [
        line
        for line in record.read_text(encoding="utf-8").splitlines(keepends=True)
        if not line.startswith(("../", "bin/")) and "/direct_url.json," not in line
    ]
    record.write_text("".join(kept), encoding="utf-8")


def settle(tree: Path) -> None:
    """Set modes and times of all files, independent of this machine and the time."""
    seconds = source_date()
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def source_date() -> int:
    """SOURCE_DATE_EPOCH in the environment, else the last commit's, else hatchling's default."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    argv = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 (fixed arguments)
    except OSError:
        return _HATCHLINGS_DATE
    return int(done.stdout) if done.stdout.strip().isdigit() else _HATCHLINGS_DATE


def _systemd(package: Package, tree: Path) -> None:
    for unit in package.units:
        _copy(ROOT / "deploy/systemd" / unit, tree / "usr/lib/systemd/system" / unit)
    for unit in package.user_units:
        _copy(ROOT / "deploy/systemd/user" / unit, tree / "usr/lib/systemd/user" / unit)
    for place, text in _of_the_host(package).items():
        _write(tree / "usr/lib" / place / f"{package.name}.conf", text)


_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions",
    "zsh": "usr/share/zsh/vendor-completions",
    "fish": "usr/share/fish/vendor_completions.d",
}
"""Shell -> where it looks."""


def _documents(package: Package, tree: Path) -> None:
    for page, text in manuals.manuals(package.documented()).items():
        _write(tree / "usr/share/man/man1" / page, text)
    for shell, directory in _COMPLETIONS.items():
        for command, text in manuals.completions(package.documented(), shell).items():
            name = {"zsh": f"_{command}", "fish": f"{command}.fish"}.get(shell, command)
            _write(tree / directory / name, text)
    documents = tree / "usr/share/doc" / package.name
    _copy(ROOT / "LICENSE", documents / "copyright")
    _copy(ROOT / "CHANGELOG.md", documents / "CHANGELOG.md")


def _environment(folder: Path, package: Package, wheel: Path, python: str) -> None:
    """A virtual environment (PEP 405) that will be installed in /opt/batchjob."""
    site = folder / f"lib/python{python_version(python)}/site-packages"
    site.mkdir(parents=True)
    install(
        package.extra,
        wheel,
        site,
        "--only-binary=:all:",
        "--python-version",
        python_version(python),
    )
    _write(
        folder / "pyvenv.cfg",
        f"home = {os.path.dirname(python)}\n"
        f"include-system-site-packages = false\nversion = {python_version(python)}\n",
    )
    (folder / "bin").mkdir()
    # With the minor version, since another one could not import the compiled dependencies.
    directory = os.path.dirname(python)
    (folder / "bin/python").symlink_to(os.path.join(directory, f"python{python_version(python)}"))
    at_home = f"/{HOME}/{package.environment}/{site.relative_to(folder)}"
    # By hash, since the files' times change during packaging.
    run(
        python, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash",
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


def _of_the_host(package: Package) -> dict[str, str]:
    """Files that create user and directories on a system whose /etc, /run or /var begins empty."""
    made = {}
    if package.user:
        home = f"/var/lib/{package.user}"
        made["sysusers.d"] = f'u {package.user} - "Job records" {home}\n'
    if package.directories:
        made["tmpfiles.d"] = "".join(
            f"d {path} {mode} {user} {user} -\n" for path, mode, user in package.directories
        )
    return made


def _copy_all(source: Path, target: Path) -> None:
    if source.is_file():
        _copy(source, target)
        return
    for path in sorted(source.rglob("*")):
        if path.is_file():
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(*argv: str, **environment: str) -> None:
    """Run a tool of the build; raises SystemExit with its output."""
    done = subprocess.run(  # noqa: S603 (build tools with fixed arguments)
        argv, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")


def version() -> str:
    """The version of the packages; Debian and RPM sort `~` before the release."""
    return __version__.replace(".dev", "~dev").replace("a", "~a").replace("rc", "~rc")
