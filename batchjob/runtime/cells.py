"""Texts in tables that people open with a spreadsheet."""

from typing import Any

# With line feeds, and the full-width forms that some spreadsheets take for the ASCII ones.
_BEGIN_FORMULAS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def harmless(value: Any) -> Any:
    """A job's name is not to be a formula in somebody's spreadsheet (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _BEGIN_FORMULAS else value
