"""Values formatted for people: three significant digits and a suitable unit; text for tables.

`space` precedes the unit; a web page may use one that does not break.
"""

import re
from typing import Any


def digits(value: float) -> str:
    """`1234`, `123`, `12.3`, `1.2`; no trailing zeros."""
    text = f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if "e" in text else text


def _scale(value: float, step: float, units: tuple[str, ...], space: str) -> str:
    power = 0
    while abs(value) >= step * 0.9995 and power < len(units) - 1:
        value /= step
        power += 1
    return f"{digits(value)}{space}{units[power]}"


def size(number_of_bytes: float, space: str = " ") -> str:
    """Bytes in powers of 1024: `1.5 GiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    return _scale(number_of_bytes, 1024, units, space)


def energy(joules: float, space: str = " ") -> str:
    """`12.3 kWh`."""
    return _scale(joules / 3600, 1000, ("Wh", "kWh", "MWh", "GWh"), space)


def mass(grams: float, space: str = " ") -> str:
    """`1.2 kg`."""
    return _scale(grams, 1000, ("g", "kg", "t", "kt"), space)


def share(ratio: float, space: str = " ") -> str:
    """A ratio as `42 %`; small ones keep a decimal place."""
    percent = ratio * 100
    text = f"{percent:.1f}" if 0 < percent < 9.95 else f"{percent:.0f}"
    return f"{text.removesuffix('.0')}{space}%"


def format_duration(seconds: float, space: str = " ") -> str:
    """`2 d 3 h`, `1 h 23 min`, `4.56 s`: two units, the second one truncated."""
    if seconds < 0:
        return f"\u2212{format_duration(-seconds, space)}"
    if seconds < 60:
        return f"{digits(seconds)}{space}s"
    whole = int(seconds)
    if whole >= 86400:
        count, rest, unit, of_rest = whole // 86400, whole % 86400 // 3600, "d", "h"
    elif whole >= 3600:
        count, rest, unit, of_rest = whole // 3600, whole % 3600 // 60, "h", "min"
    else:
        count, rest, unit, of_rest = whole // 60, whole % 60, "min", "s"
    first = f"{count}{space}{unit}"
    return f"{first} {rest}{space}{of_rest}" if rest else first


def format_exact_duration(seconds: float, space: str = " ") -> str:
    """The same with milliseconds unless they are zero: `4.567 s`, `1 min 23 s (83.457 s)`."""
    if not round(seconds, 3) % 1:
        return format_duration(seconds, space)
    exact = f"{seconds:.3f}{space}s"
    return exact if seconds < 60 else f"{format_duration(seconds, space)} ({exact})"


def format_clock(seconds: float) -> str:
    """`h:mm:ss`, as schedulers print it; hours may exceed 24."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def format_run_time(seconds: float) -> str:
    """Like `format_clock`; below a minute, seconds with their fraction: `0.02 s`."""
    return format_duration(seconds) if 0 <= seconds < 60 else format_clock(seconds)


def format_count(count: float, what: str) -> str:
    """`1 node`, `2 nodes`, `0.5 CPUs`."""
    return f"{digits(count)} {what}{'s' if count != 1 else ''}"


_SURROGATE = re.compile("[\ud800-\udfff]")


def to_printable(text: str) -> str:
    """Replace characters that break a line or move a terminal's cursor: users choose names."""
    spaced = (" " if character.isspace() else character for character in text)
    return "".join(character if character.isprintable() else "?" for character in spaced)


def replace_non_utf8(text: str) -> str:
    """The text with U+FFFD for each byte that was not UTF-8.

    Python keeps such bytes of file names as surrogates (os.fsdecode), which UTF-8 cannot encode.
    """
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def to_header(text: str) -> str:
    """Without what could begin another header: line feeds, and the `=?` of encoded words.

    email.message decodes encoded words (RFC 2047) when a header is set, line feeds among them.
    """
    return to_printable(replace_non_utf8(text)).replace("=?", "= ?")


# Includes control characters, and the full-width forms that some spreadsheets treat as ASCII.
_FORMULA_PREFIXES = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def escape_formula(value: Any) -> Any:
    """The text, escaped if a spreadsheet would take it for a formula (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA_PREFIXES else value


def format_exit_code(code: int | None, code_or_128_more: int | None) -> str:
    """`127`, `127 or 255` if only that much is known (JobRecord.exit_code_or_128_more), or ""."""
    if code is not None:
        return str(code)
    return "" if code_or_128_more is None else f"{code_or_128_more} or {code_or_128_more + 128}"
