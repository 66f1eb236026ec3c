"""The reason of a failure for people: the kernel's words without its error numbers."""

import re
import ssl

# What Python adds around OpenSSL's messages: "[SSL] PEM lib (_ssl.c:3905)".
_OPENSSL_DECORATION = re.compile(r"^\[[^]]*\] | \(_ssl\.c:\d+\)$")


def reason(error: BaseException) -> str:
    """`No such file or directory` for an OSError, OpenSSL's text for an SSLError, else its text."""
    if library := getattr(error, "reason", None):
        return str(library).replace("_", " ").lower()
    words = error.strerror if isinstance(error, OSError) else ""
    if isinstance(error, ssl.SSLError) and words:
        words = _OPENSSL_DECORATION.sub("", words)
        return "expected PEM" if words == "PEM lib" else words
    return words or str(error) or type(error).__name__
