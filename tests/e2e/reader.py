"""Somebody who follows the documentation on a booted machine: blocks are typed as pages have them.

reader = Reader(machine)
reader.run_block("docs/packages.md", "apt install ./batchjob-exporter")
with reader.start_block("docs/up.md", "batchjob up") as command:
    until(lambda: "token" in command.printed(), "the address")
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.e2e.booted import Machine
from tests.helpers.processes import call
from tests.test_documented_commands import BLOCKS

NOTHING: Mapping[str, str] = {}
SHELL = ("bash", "-euo", "pipefail", "-c")


class Command(NamedTuple):
    """A block that goes on until somebody ends it."""

    machine: Machine
    unit: str

    def printed(self) -> str:
        """All of it so far; AssertionError where it has failed."""
        text = self.machine.log(self.unit)
        assert self.machine.unit_property(self.unit, "ActiveState") != "failed", text
        return text


class Reader(NamedTuple):
    """Root of a machine, in a folder."""

    machine: Machine
    folder: str = "/root"
    environment: Mapping[str, str] = NOTHING

    def run_block(self, page: str, begin: str, changes: Mapping[str, str] = NOTHING) -> str:
        """Run a block of shell; what it printed, AssertionError where one of its commands fails."""
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        command = self.machine.command_inside(*SHELL, self._in_folder(text(page, begin, changes)))
        return call(*command, env={**given, **self.environment})

    @contextlib.contextmanager
    def start_block(
        self, page: str, begin: str, changes: Mapping[str, str] = NOTHING
    ) -> Iterator[Command]:
        """Run a block whose last command stays in the foreground, and end it as Ctrl-C does."""
        unit = "typed-" + "".join(each for each in begin if each.isalnum())
        given = [f"--setenv={name}={value}" for name, value in self.environment.items()]
        self.machine.run(
            "systemd-run", f"--unit={unit}", "--property=KillSignal=SIGINT", "--setenv=HOME=/root",
            *given, *SHELL, self._in_folder(text(page, begin, changes)),
        )  # fmt: skip
        try:
            yield Command(self.machine, unit)
        finally:
            self.machine.run("systemctl", "stop", unit)

    def write_block(
        self, page: str, begin: str, path: str = "", changes: Mapping[str, str] = NOTHING
    ) -> None:
        """Make a file of a block; without `path` its first line is `# PATH`."""
        content = text(page, begin, changes)
        path = path or content.split()[1].rstrip(":")
        target = self.machine.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def _in_folder(self, block: str) -> str:
        return f"cd {self.folder}\n{block}"


def text(page: str, begin: str, changes: Mapping[str, str] = NOTHING) -> str:
    """The one block of a page that begins so; `changes`: what stands for something of a site."""
    (found,) = [each.text for each in BLOCKS if each.page == page and each.text.startswith(begin)]
    for old, new in changes.items():
        assert old in found, f"{page}: {begin}: no {old}"
        found = found.replace(old, new)
    return found
