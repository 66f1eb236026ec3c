"""Texts in tables that people open with a spreadsheet."""

from typing import Any


def harmless(value: Any) -> Any:
    """A job's name is not to be a formula in somebody's spreadsheet (OWASP, "CSV Injection")."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
