"""Text for tables that may be opened in a spreadsheet."""

from typing import Any

# With line feeds, and the full-width forms that some spreadsheets take for the ASCII ones.
_BEGIN_FORMULAS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def harmless(value: Any) -> Any:
    """The text, escaped if a spreadsheet would take it for a formula (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _BEGIN_FORMULAS else value
