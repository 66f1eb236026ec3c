"""Parsers of the values that people write in flags, YAML keys and arguments.

Each function takes the text of a flag or a YAML value and returns the parsed value, or raises
ValueError saying what was expected.
"""

import ipaddress
import re
from collections.abc import Callable, Set
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

Parse = Callable[[Any], Any]
_Parse = TypeVar("_Parse", bound=Parse)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def with_metavar(metavar: str) -> Callable[[_Parse], _Parse]:
    """Set the name under which --help and the option pages show the values of a parser."""

    def decorate(parse: _Parse) -> _Parse:
        parse.__dict__["metavar"] = metavar
        return parse

    return decorate


def metavar_of(parse: Parse) -> str:
    return getattr(parse, "metavar", "VALUE")


def text(value: Any) -> str:
    """A string; YAML numbers and booleans are refused."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    return value


def boolean(value: Any) -> bool:
    """true or false."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected true or false, got {value!r}")


@with_metavar("N")
def integer(value: Any) -> int:
    """A whole number of at least 0."""
    return _parse_integer(value, 0)


@with_metavar("N")
def at_least_one(value: Any) -> int:
    """A whole number of at least 1."""
    return _parse_integer(value, 1)


def _parse_integer(value: Any, least: int) -> int:
    if not isinstance(value, bool) and str(value).isascii() and str(value).isdigit():
        parsed = int(value)
        if parsed >= least:
            return parsed
    raise ValueError(f"expected a whole number of at least {least}, got {value!r}")


@with_metavar("X")
def number(value: Any) -> float:
    if not isinstance(value, bool):
        try:
            parsed = float(value)
        except (TypeError, ValueError):
            parsed = -1.0
        if 0 <= parsed < float("inf"):
            return parsed
    raise ValueError(f"expected a number of at least 0, got {value!r}")


@with_metavar("RATIO")
def ratio(value: Any) -> float:
    """A fraction from `0.25` or `25%`, 0 to 1."""
    raw = str(value).strip()
    try:
        parsed = float(raw[:-1]) / 100 if raw.endswith("%") else float(raw)
    except ValueError:
        parsed = -1.0
    if not isinstance(value, bool) and 0 <= parsed <= 1:
        return parsed
    raise ValueError(f"expected a fraction such as 0.25 or 25%, got {value!r}")


DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")


@with_metavar("DURATION")
def duration(value: Any) -> float:
    """Seconds from `90`, `90s`, `5m`, `1h30m`, `2d` (Prometheus' units)."""
    raw = str(value).strip() if not isinstance(value, bool) else ""
    if raw.isascii() and raw.replace(".", "", 1).isdigit():
        raw += "s"
    if _DURATION.fullmatch(raw):
        parts = _DURATION_PART.findall(raw)
        total = sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
        if total <= 36500 * DURATION_UNITS["d"]:  # no thread can wait for more than 292 years
            return total
    raise ValueError(f"expected a duration such as 30s, 5m or 1h30m, up to 36500d, got {value!r}")


@with_metavar("SIZE")
def size(value: Any) -> int:
    """Bytes from `512`, `4G`, `1.5GiB`, in powers of 1024."""
    return size_bytes(str(value))


_SIZE = re.compile(
    r"(\d{1,20}(?:\.\d{1,20})?) ?([kmgtpez]?)(i?b|bytes?|w)?", re.IGNORECASE | re.ASCII
)
_LARGEST = 2**63 - 1
_EXPONENTS = {letter: power for power, letter in enumerate("kmgtpez", 1)}


def size_bytes(text: str, unit: str = "") -> int:
    """Bytes of `4000M` (Slurm), `16777216kb`, `4gw` (PBS; a word has 8 bytes), `5.2 Gbytes` (LSF).

    All units are powers of 1024. `unit`: that of a number without a letter ("", "K", "M" ...).
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"expected a size such as 4000M, got {text[:40]!r}")
    number, letter, kind = match.groups()
    letter = letter or ("" if kind else unit)
    exponent = _EXPONENTS[letter.lower()] if letter else 0
    factor: int = 1024**exponent * (8 if kind in ("w", "W") else 1)
    size = int(number) * factor if number.isdigit() else round(float(number) * factor)
    if size > _LARGEST:
        raise ValueError(f"expected a size below 2^63 bytes, got {text[:40]!r}")
    return size


_JOULES_PER_UNIT = {
    "j": 1.0,
    "kj": 1e3,
    "mj": 1e6,
    "gj": 1e9,
    "wh": 3.6e3,
    "kwh": 3.6e6,
    "mwh": 3.6e9,
}


@with_metavar("ENERGY")
def energy(value: Any) -> float:
    """Joules from `5000`, `5 kJ`, `1.5kWh`."""
    raw = str(value).strip()
    number_part = raw.rstrip("JWhjwkKMmGg ")
    unit = raw[len(number_part) :].strip().lower()
    try:
        joules = float(number_part) * _JOULES_PER_UNIT[unit or "j"]
    except (KeyError, ValueError):
        joules = -1.0
    if 0 <= joules < float("inf"):
        return joules
    raise ValueError(f"expected an energy such as 5000 (joules), 20 MJ or 1.5 kWh, got {value!r}")


_UNIX_SOCKET = re.compile(r"unix:(//)?/(?!/)")  # a URL without a host


def service_url(value: Any) -> str:
    """http://host:port, https://host:port or unix:/path."""
    text = str(value)
    parts = _split_http_url(text)
    if _UNIX_SOCKET.match(text) or (parts and not parts.username):
        return text
    raise ValueError(f"expected http://host:port, https://host:port or unix:/path, got {value!r}")


def one_of(*choices: str) -> Parse:
    @with_metavar("|".join(choices))
    def parse(value: Any) -> str:
        if value in choices:
            return str(value)
        raise ValueError(f"expected one of {', '.join(choices)}, got {value!r}")

    return parse


class ListenAddress(NamedTuple):
    """An address to listen on; without a host, all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@with_metavar("HOST:PORT")
def address(value: Any) -> ListenAddress:
    """`:10912`, `127.0.0.1:10912`, `[::1]:10912`."""
    host, colon, port = str(value).rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    clear = bare != host or ":" not in host
    if clear and colon and port.isascii() and port.isdigit() and int(port) < 65536:
        return ListenAddress(bare, int(port))
    raise ValueError(f"expected HOST:PORT or :PORT, got {value!r}")


@with_metavar("NETWORK")
def network(value: Any) -> Network:
    """`192.0.2.0/24`, `2001:db8::/32`, or one address."""
    try:
        return ipaddress.ip_network(str(value))
    except ValueError:
        raise ValueError(
            f"expected a network such as 192.0.2.0/24 or 2001:db8::/32, got {value!r}"
        ) from None


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of this machine that no other site has."""


def host_name(authority: str) -> str:
    """The host of `HOST[:PORT]`, without the brackets of IPv6; "" if it has none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


@with_metavar("URL")
def http_url(value: Any) -> str:
    """An http or https URL, without a trailing slash."""
    parts = _split_http_url(str(value))
    if parts and not parts.query:
        return str(value).rstrip("/")
    raise ValueError(f"expected http://HOST or https://HOST, got {value!r}")


def _split_http_url(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None for other URLs and for invalid ports."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # "Invalid IPv6 URL", "Port out of range 0-65535"
        return None
    return parts if good else None


_CPUS = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_MAX_CPUS = 65536  # more than any kernel supports; a longer list would cost memory


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of the kernel's list format, `0-3,8` (cpuset(7), "List format")."""
    found: set[int] = set()
    for part in text.split(","):
        matched = _CPUS.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if not first <= last < _MAX_CPUS:
            raise ValueError(f"expected CPUs such as 0-3,8, got {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpu_list(cpus: Set[int]) -> str:
    parts: list[list[int]] = []
    for each in sorted(cpus):
        if parts and parts[-1][-1] == each - 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ",".join("-".join(map(str, part)) for part in parts)
