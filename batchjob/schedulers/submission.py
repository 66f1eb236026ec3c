"""Corrected requests: the options of a submit line, and the directives of a batch script.

Only options whose values change are touched; words of the program are never read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


@dataclass(frozen=True)
class NextRequest:
    """What to request next time, of each node; None: as before."""

    nodes: int
    held_cpus: int | None  # what it had of each node, if that is the same everywhere
    held_memory_mib: int | None
    cpus: int | None = None
    memory_mib: int | None = None
    gpus: int | None = None
    seconds: int | None = None


Values = Mapping[str, str]


class Submission(NamedTuple):
    commands: tuple[str, ...]  # the first one is used if the submit line is not known
    directive: str  # begins a line of options in a batch script
    patterns: Mapping[str, re.Pattern[str]]  # of options, by name; their group is the value
    added: Mapping[str, str]  # how an option is written that was not there, for `str.format`
    next_values: Callable[[Values, NextRequest], Values]  # of the options that change
    name: re.Pattern[str]  # the option that names a job
    flags: frozenset[str] = frozenset()  # options of the command without a value
    recorded: Callable[[str], str] = lambda _: ""  # options from JobRecord.requested_resources

    def values(self, text: str) -> dict[str, str]:
        """The values of known options; of several, the last one counts."""
        found = {name: pattern.findall(text) for name, pattern in self.patterns.items()}
        return {name: values[-1] for name, values in found.items() if values}

    def corrected_line(self, line: str, other_options: str, request: NextRequest) -> str:
        """The submit line, or one to be completed, with the request; "": it changes nothing.

        `other_options`: those that the job had beside its submit line, as in its batch script.
        """
        command, options, rest = self._parts(line)
        values = self.next_values(self.known(line, other_options), request)
        options, missing = self._replaced(options, values)
        written = " ".join(each for each in (command, *missing, options.strip(), rest) if each)
        return written if values else ""

    def options_for(self, line: str, other_options: str, request: NextRequest) -> str:
        values = self.next_values(self.known(line, other_options), request)
        return " ".join(self._write(name, values) for name in values)

    def known(self, line: str, other_options: str = "") -> dict[str, str]:
        """The options that a job had, on its submit line or beside it."""
        return self.values(other_options) | self.values(self._parts(line)[1])

    def corrected_script(self, script: str, request: NextRequest) -> str:
        """The batch script with the request in its directives."""
        lines = script.split("\n")
        places = list(self._directives(lines))
        values = self.next_values(self._script_values(lines), request)
        new = dict(values)
        for at in places:
            for name in self.values(lines[at]).keys() & values.keys():
                new.pop(name, None)
            lines[at], _ = self._replaced(lines[at], values)
        at = places[-1] + 1 if places else int(lines[0].startswith("#!"))
        lines[at:at] = [f"{self.directive} {self._write(name, new)}" for name in sorted(new)]
        return "\n".join(lines)

    def has_directives(self, script: str) -> bool:
        return any(True for _ in self._directives(script.split("\n")))

    def job_names(self, script: str) -> Iterator[str]:
        """The names that the script gives its job, the last one first."""
        lines = script.split("\n")
        for at in reversed(list(self._directives(lines))):
            yield from reversed(self.name.findall(lines[at]))

    def unplaced(self, script: str, request: NextRequest) -> Iterator[str]:
        """What of the request the script cannot hold, since it does not say how it asks for it."""
        known = self._script_values(script.split("\n"))
        values = self.next_values(known, request)
        for what, name in (("CPUs", "cpus"), ("GPUs", "gpus")):
            without = replace(request, **{name: None})  # type: ignore[arg-type]
            if request != without and self.next_values(known, without) == values:
                yield what

    def _script_values(self, lines: list[str]) -> dict[str, str]:
        return self.values("\n".join(lines[at] for at in self._directives(lines)))

    def _write(self, name: str, values: Values) -> str:
        return self.added[name].format(values[name])

    def _replaced(self, text: str, values: Values) -> tuple[str, list[str]]:
        """The text with these values, and the options that it lacks."""
        missing = []
        for name, value in values.items():
            if name not in self.values(text):
                missing.append(self._write(name, values))
            for match in reversed(list(self.patterns[name].finditer(text))):
                text = text[: match.start(1)] + value + text[match.end(1) :]
        return text, missing

    def _directives(self, lines: list[str]) -> Iterator[int]:
        """The lines with directives: those before the first command."""
        for at, line in enumerate(lines):
            if line.startswith(f"{self.directive} "):
                yield at
            elif line.strip() and not line.startswith("#"):
                return

    def _parts(self, line: str) -> tuple[str, str, str]:
        """The command with its options, and the words from the script's name on."""
        words = line.split(" ")
        if words[0].rpartition("/")[2] not in self.commands:
            return self.commands[0], "", line if line and "\n" not in line else "SCRIPT"
        position = 1
        while position < len(words) and (words[position][:1] in ("-", "")):
            word = words[position]
            if word == "--":
                break
            is_whole = "=" in word or not word or word in self.flags
            is_attached = len(word) > 2 and not word.startswith("--")  # like -t30
            position += 1 if is_whole or is_attached else 2
        return words[0], " ".join(words[1:position]), " ".join(words[position:])


def option(long: str, short: str = "") -> re.Pattern[str]:
    """`--long=VALUE`, `--long VALUE`, `-s VALUE` or `-sVALUE`."""
    names = f"--{long}(?:=|\\s+)" + (f"|-{short}\\s*" if short else "")
    return re.compile(f"(?<!\\S)(?:{names})(\\S+)")
