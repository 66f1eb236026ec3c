"""A frozen dataclass per component defines its options; flags, YAML keys and docs follow from it.

    @dataclass(frozen=True)
    class Options:
        linger: float = option(300.0, "How long a finished job stays visible.", parse=duration)

    SECTIONS = {"collector.jobs": Options}    # flag --collector.jobs.linger, key without dashes

A flag overrides the file, and the file overrides the default. An error is one line that names the
flag or key, what was expected and, for an unknown name, the nearest known one.
"""

import argparse
import difflib
import errno
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from batchjob.runtime.values import (
    DURATION_UNITS,
    Parse,
    boolean,
    duration,
    integer,
    metavar_of,
    number,
    one_of,
    text,
)

if TYPE_CHECKING:  # YAML is imported with the first file: most commands have none
    import yaml
    from _typeshed import DataclassInstance


class SettingsError(ValueError):
    """A flag, key or value is wrong; the text is for the person who wrote it."""


class UnavailableError(SettingsError):
    """Something that the settings name is not available now, but may be later."""


def listen_error(where: object, error: OSError) -> SettingsError:
    """The error for an address that cannot be bound; UnavailableError if a retry may succeed."""
    # socket.create_server() adds the rest.
    why = str(error.strerror or error).partition(" (while attempting")[0]
    text = f"web.listen-address: cannot listen on {where}: {why}"
    may_pass = error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
    return UnavailableError(text) if may_pass else SettingsError(text)


def exit_status(error: Exception) -> int:
    """1 for an error that may pass, so that systemd restarts the program, else 2."""
    return 1 if isinstance(error, UnavailableError) else 2


T = TypeVar("T", bound="DataclassInstance")


class NamedOption(NamedTuple):
    """An option, and its names in flags and files and in its dataclass."""

    default: Any
    help: str
    parse: Parse
    metavar: str
    repeat: bool
    flag: bool
    name: str
    field: str = ""


def option(
    default: Any,
    help: str,
    *,
    parse: Parse | None = None,
    metavar: str = "",
    repeat: bool = False,
    flag: bool = True,
    key: str = "",
) -> Any:
    """A field of an options dataclass.

    `parse` converts the text of a flag or the value of a YAML key to the field's value and raises
    ValueError saying what was expected; without it, the type of the default decides. `repeat`: a
    tuple, from a flag given several times or a YAML list. `flag=False`: only in the file. `key`:
    its name, if that is not the field's name with dashes.
    """
    parser = parse or _parser_for(default)
    metavar = metavar or metavar_of(parser)
    named = NamedOption(default, help, parser, metavar, repeat, flag, key)
    return field(default=default, metadata={"option": named})


_METAVARS = {
    "directory": "DIRECTORY",
    "file": "FILE",
    "group": "GROUP",
    "host": "HOST",
    "url": "URL",
    "user": "USER",
    "username": "USER",
}


def _parser_for(default: Any) -> Parse:
    for kind, parse in ((bool, boolean), (int, integer), (float, number)):
        if isinstance(default, kind):
            return parse
    return text


def options_of(sections: Mapping[str, type[Any]]) -> Iterator[NamedOption]:
    """All options of the sections; a field `listen_address` in `web` is `web.listen-address`."""
    for section, cls in sections.items():
        for each in fields(cls):
            found: NamedOption | None = each.metadata.get("option")
            if found is not None:
                key = found.name or each.name.replace("_", "-")
                name = f"{section}.{key}" if section else key
                yield found._replace(name=name, field=each.name)


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and exit status 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No flag starts with a digit, so the `-5d` of `--since -5d` is a value.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Like argparse's; a `type` of `with_metavar` names its value, and says what it expects."""
        parse: Any = options.get("type")
        if not hasattr(parse, "metavar"):
            return super().add_argument(*names, **options)

        def parsed(text: str) -> Any:
            try:
                return parse(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error

        return super().add_argument(*names, **{**options, "type": parsed, "metavar": parse.metavar})

    def error(self, message: str) -> Any:
        raise SettingsError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but the value of an unknown flag is not taken for an unknown command."""
        try:
            return super().parse_known_args(args, namespace)
        except SettingsError as error:
            if "argument COMMAND" in str(error):
                arguments = sys.argv[1:] if args is None else args
                known = [flag for action in self._actions for flag in action.option_strings]
                flags = [each for each in arguments if each.startswith("--")]
                refuse_unknown(self, [each for each in flags if each.split("=")[0] not in known])
            raise

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but an unknown option is reported with the nearest known one."""
        known, unknown = self.parse_known_args(args, namespace)
        refuse_unknown(self, unknown)
        return known


def refuse_unknown(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Raise SettingsError for unknown arguments, with the nearest known flag."""
    for argument in arguments:
        if not argument.startswith("-"):
            raise SettingsError(f"unexpected argument {argument!r}")
        flags = [flag for action in parser._actions for flag in action.option_strings]
        flag_name = argument.split("=", 1)[0]
        if flag_name in flags:
            raise SettingsError(f"{flag_name} must come before the command")
        raise SettingsError(f"unknown flag {flag_name}{suggest_nearest(flag_name, flags)}")


def add_flags(parser: argparse.ArgumentParser, sections: Mapping[str, type[Any]]) -> None:
    """Add a flag for each option; options that are not given are absent from the namespace."""
    for each in options_of(sections):
        if not each.flag:
            continue
        extra: dict[str, Any]
        if each.parse is boolean:
            extra = {"action": argparse.BooleanOptionalAction}
        else:
            extra = {"action": "append" if each.repeat else "store", "metavar": _metavar(each)}
        help_text = each.help
        if format_default(each) or "default: " not in help_text:
            help_text += f" (default: {format_default(each) or 'none'})"
        parser.add_argument(
            f"--{each.name}",
            dest=each.name,
            default=argparse.SUPPRESS,
            help=help_text.replace("%", "%%"),
            **extra,
        )


def _metavar(option: NamedOption) -> str:
    """The name of the value in --help; for plain text, the last word of the option's name."""
    if option.parse is not text or option.metavar != metavar_of(text):
        return option.metavar
    last = option.name.replace(".", "-").rsplit("-", 1)[-1]
    return _METAVARS.get(last, option.metavar)


def format_default(option: NamedOption) -> str:
    """The default of an option as people write it; empty if there is none."""
    default = option.default
    values = default if option.repeat else (default,)
    return ", ".join(_format_value(each, option.parse) for each in values if each not in (None, ""))


def _format_value(value: Any, parse: Parse) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if parse is duration:
        units = reversed(DURATION_UNITS.items())
        whole = ((u, s) for u, s in units if value and round(value / s, 9).is_integer())
        unit, size = next(whole, ("s", 1.0))
        return f"{value / size:g}{unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_flags(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, Any]:
    """Parse flags into a mapping from option name to text; errors name the nearest known flag."""
    known, unknown = parser.parse_known_args(arguments)
    refuse_unknown(parser, unknown)
    return vars(known)


def load_file(
    path: str, sections: Mapping[str, type[Any]], extra_keys: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Read a YAML file whose keys are the flags' names, nested at the dots or not.

    `extra_keys`: keys that are not options of a section. Raises SettingsError with file and line.
    """
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            node = yaml.compose(file, Loader=yaml.SafeLoader)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"{path}: expected a mapping of option names to values")
    known: dict[str, NamedOption | None] = dict.fromkeys(extra_keys)
    known.update((each.name, each) for each in options_of(sections))
    return dict(_flatten(path, node, "", known))


def _flatten(
    path: str, node: "yaml.MappingNode", prefix: str, known: Mapping[str, NamedOption | None]
) -> Iterator[tuple[str, Any]]:
    import yaml

    for key_node, value_node in node.value:
        name = prefix + str(key_node.value)
        line = key_node.start_mark.line + 1
        nested = isinstance(value_node, yaml.MappingNode)
        if nested and any(k.startswith(name + ".") for k in known):
            yield from _flatten(path, value_node, name + ".", known)
        elif name in known:
            yield name, _construct_value(f"{path}:{line}", name, value_node, known[name])
        else:
            raise SettingsError(f"{path}:{line}: unknown key {name}{suggest_nearest(name, known)}")


def _construct_value(where: str, name: str, node: "yaml.Node", option: NamedOption | None) -> Any:
    """Construct and check the value of a YAML node, so that errors name its line."""
    import yaml

    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{where}: {name}: {' '.join(str(error).split())}") from error
    if option is not None:
        try:
            _parse_value(option, value)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error
    return value


def build_section(cls: type[T], section: str, values: Mapping[str, Any]) -> T:
    """Build one section's dataclass from `values` (option name to text or YAML value)."""
    known = options_of({section: cls})
    return cls(**{o.field: _parse_value(o, values[o.name]) for o in known if o.name in values})


def _parse_value(each: NamedOption, raw: Any) -> Any:
    try:
        if each.repeat:
            items = raw if isinstance(raw, list) else [raw]
            return tuple(each.parse(item) for item in items)
        return each.parse(raw)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{each.name}: {error}") from error


def suggest_nearest(name: str, known: Any) -> str:
    """`; did you mean ...?` with the closest known name, or an empty text."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


_MAX_LISTED, _MAX_EXAMPLES = 12, 5  # maximum names listed: as a complete list, as examples


def suggest_names(name: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` with the names that are like it; else what the known names are."""
    matches = [each for each in known if name and name in each]
    matches = matches or difflib.get_close_matches(name, known)
    if matches:
        return f"; did you mean {' or '.join(matches[:_MAX_EXAMPLES])}?"
    if len(known) <= _MAX_LISTED:
        return f"; expected one of {', '.join(known)}"
    return f"; expected a name such as {', '.join(known[:_MAX_EXAMPLES])}"


@dataclass(frozen=True)
class LogOptions:
    level: str = option(
        "info",
        "Minimum severity of log messages.",
        parse=one_of("debug", "info", "warning", "error"),
    )
    format: str = option("logfmt", "Format of log lines.", parse=one_of("logfmt", "json"))
