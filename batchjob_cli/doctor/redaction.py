"""Takes out of a text what is nobody else's business, and keeps apart what was apart.

People, hosts and addresses get numbers, the same ones throughout; secrets are cut out.
"""

import os
import pwd
import re
import socket
from collections.abc import Iterable

_SECRETS = (
    re.compile(r"-----BEGIN [^-]+-----.*?-----END [^-]+-----", re.DOTALL),
    re.compile(r"\bbj_[A-Za-z0-9_-]{8,}"),  # a token of the server
    re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # a JSON Web Token
    re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}"),  # a bcrypt hash
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),  # user and password of a URL
    re.compile(r"(?im)(?<=bearer )\S+"),
    re.compile(
        r"(?im)^(?P<keep>\s*-?\s*[\w.-]*(?:password|secret|token|api[-_]key|key)\s*[:=]\s*)[^\n#]+"
    ),
)
_FILE_KEY = re.compile(r"(?i)[\w.-]*[-_]file\s*[:=]")  # names a file, and is no secret
_IPV4 = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_LOOPBACK = ("127.", "0.0.0.0")  # noqa: S104 (nothing listens here)
_FIRST_PERSON = 1000  # uids below are the system's (login.defs(5), UID_MIN)
_NOBODY = 65534


def people() -> list[str]:
    """Logins of this machine that are people's; a directory is not asked for all of its own."""
    return [
        each.pw_name
        for each in pwd.getpwall()
        if each.pw_uid >= _FIRST_PERSON and each.pw_uid != _NOBODY
    ]


def hosts() -> list[str]:
    """The names of this machine."""
    names = {os.uname().nodename, socket.gethostname()}
    return [*names, *(name.partition(".")[0] for name in names)]


class Redaction:
    """Replaces in one text after another, with the same numbers for the same names."""

    def __init__(self, logins: Iterable[str], machines: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        for kind, words in (("user", logins), ("host", machines)):
            longest_first = sorted({each for each in words if len(each) > 1}, key=len, reverse=True)
            for word in longest_first:
                self._number(kind, word)
        known = "|".join(re.escape(word) for word in self._names)
        self._words = re.compile(rf"(?<![\w-])(?:{known})(?![\w-])") if known else None

    def _number(self, kind: str, word: str) -> str:
        if word not in self._names:
            count = sum(name.startswith(kind) for name in self._names.values())
            self._names[word] = f"{kind}{count + 1}"
        return self._names[word]

    def __call__(self, text: str) -> str:
        """The text without them."""
        for pattern in _SECRETS:
            text = pattern.sub(_cut, text)
        text = _MAIL.sub("MAIL", text)
        if self._words:
            text = self._words.sub(lambda found: self._names[found[0]], text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(self._address, text)
        return text

    def _address(self, found: re.Match[str]) -> str:
        address = found[0]
        return address if address.startswith(_LOOPBACK) else self._number("address", address)


def _cut(found: re.Match[str]) -> str:
    if _FILE_KEY.match(found[0].lstrip(" -")):
        return found[0]
    return f"{found.groupdict().get('keep', '')}REDACTED"
