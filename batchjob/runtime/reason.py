"""The reason of a failure for people: the kernel's words without its error numbers."""


def reason(error: BaseException) -> str:
    """`No such file or directory` for an OSError, OpenSSL's text for an SSLError, else its text."""
    if library := getattr(error, "reason", None):
        return str(library).replace("_", " ").lower()
    words = error.strerror if isinstance(error, OSError) else ""
    return words or str(error) or type(error).__name__
