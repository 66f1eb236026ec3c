"""Removes confidential words from a text, consistently.

People, hosts and addresses are replaced by numbers, the same throughout; secrets are removed.
"""

import contextlib
import ipaddress
import os
import pwd
import re
import socket
from collections.abc import Callable, Iterable

_WORDS = "(?:pass|password|passwd|passphrase|secret|token|credentials?|cookie|api[-_]?key)"
_KEY = rf"(?:- )?[\w.-]{{0,64}}(?:{_WORDS}|key)"
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'&,}\]]+)"""
_SECRETS = (
    re.compile(r"-----BEGIN [^-]{1,64}-----.{1,20000}?-----END [^-]{1,64}-----", re.DOTALL),
    re.compile(r"\bb[js]_[A-Za-z0-9_-]{8,}"),  # a token of the server, a session
    re.compile(
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    ),  # a JSON Web Token
    re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}"),  # a bcrypt hash
    re.compile(r"(?<=://)[^/\s]+(?=@)"),  # user and password of a URL
    re.compile(r"(?i)(?P<keep>\bauthorization[\"']?\s*[:=]\s*)[^\n}]+"),
    re.compile(r"(?im)(?<=bearer )\S+"),
    # Multi-line values, and passwords of users, in YAML.
    re.compile(
        rf"(?im)^(?P<keep>(?P<deep> {{0,40}})(?:{_KEY}: *[|>]|basic_auth_users:)[^\n]*\n)"
        r"(?:(?P=deep) +[^\n]*(?:\n|\Z))+"
    ),
    re.compile(rf"(?im)^(?P<keep>[ \t]*(?:{_KEY}|basic_auth_users)[ \t]*[:=][ \t]*)[^\n]+"),
    # Within a line: in a mapping, a command or a log line.
    re.compile(rf"(?i)(?P<keep>(?:{_WORDS}[\"']?\s*[:=]|key=)\s*){_VALUE}"),
    re.compile(rf"(?i)(?P<keep>--[\w.-]{{0,64}}{_WORDS}[ \t]+){_VALUE}"),
    # ipmitool(1), ipmi-dcmi(8), sshpass(1)
    re.compile(
        r"(?P<keep>(?<![\w.-])(?:ipmi[\w-]{0,9}|sshpass)\b[^\n]{0,200}?\s-[pPkK][ \t]*)" + _VALUE
    ),
)
_FILE_KEY = re.compile(r"(?i)[\w.-]{0,64}[-_]file\s*[:=]")  # the name of a file, not a secret
_IPV4 = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5,7}[0-9a-f]{2}(?![\w:])", re.IGNORECASE)
_HOST = re.compile(r"(?P<before>://|@|[?&]host=)(?P<host>[A-Za-z0-9][\w.-]*)")
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+")
_UNCHANGED_HOSTS = ("localhost", "REDACTED", "MAIL")
_FIRST_USER_UID = 1000  # smaller uids belong to the system (login.defs(5), UID_MIN)
_NOBODY = 65534


def find_logins(
    words: Iterable[str] = (),
    of_name: Callable[[str], int] = lambda name: pwd.getpwnam(name).pw_uid,
) -> list[str]:
    """Logins of people on this machine, and those of `words` that are other logins.

    A directory service cannot be asked for all its users, and may refuse to list them.
    """
    listed = {each.pw_name: each.pw_uid for each in pwd.getpwall()}
    for word in set(words) - listed.keys():
        with contextlib.suppress(KeyError, OSError, ValueError):
            listed[word] = of_name(word)
    return [name for name, uid in listed.items() if uid >= _FIRST_USER_UID and uid != _NOBODY]


def find_hosts(*texts: str) -> list[str]:
    """The names of this machine, and full names of others in the URLs of texts."""
    names = {os.uname().nodename, socket.gethostname()}
    others = {found["host"].rstrip(".") for text in texts for found in _HOST.finditer(text)}
    full = (name for name in others if "." in name and not _IPV4.fullmatch(name))
    return [*names, *(name.partition(".")[0] for name in names), *full]


class Redaction:
    """Replaces names in one text after another, with the same numbers for the same names."""

    def __init__(self, logins: Iterable[str], machines: Iterable[str]) -> None:
        self._placeholders: dict[str, str] = {}
        for kind, words in (("user", logins), ("host", machines)):
            longest_first = sorted({each for each in words if len(each) > 1}, key=len, reverse=True)
            for word in longest_first:
                self._placeholder(kind, word)
        known = "|".join(re.escape(word) for word in self._placeholders)
        self._words = re.compile(rf"(?<![\w-])(?:{known})(?![\w-])") if known else None

    def _placeholder(self, kind: str, word: str) -> str:
        if word not in self._placeholders:
            count = sum(name.startswith(kind) for name in self._placeholders.values())
            self._placeholders[word] = f"{kind}{count + 1}"
        return self._placeholders[word]

    def __call__(self, text: str) -> str:
        """The text without them."""
        for pattern in _SECRETS:
            text = pattern.sub(_redact_secret, text)
        text = _MAIL.sub("MAIL", text)
        if self._words:
            text = self._words.sub(lambda found: self._placeholders[found[0]], text)
        for pattern in (_IPV4, _MAC, _IPV6):
            text = pattern.sub(self._replace_address, text)
        return _HOST.sub(self._replace_host, text)

    def _replace_address(self, found: re.Match[str]) -> str:
        return self._placeholder("address", found[0]) if _is_identifying(found[0]) else found[0]

    def _replace_host(self, found: re.Match[str]) -> str:
        host = found["host"]
        known = (
            host in _UNCHANGED_HOSTS
            or host.startswith("127.")
            or host in self._placeholders.values()
        )
        return found[0] if known else found["before"] + self._placeholder("host", host)


def _is_identifying(text: str) -> bool:
    """Whether it is an address, and neither a time of day, loopback nor the wildcard address."""
    if _MAC.fullmatch(text):
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _redact_secret(found: re.Match[str]) -> str:
    if _FILE_KEY.match(found[0].lstrip(" -")):
        return found[0]
    return f"{found.groupdict().get('keep', '')}REDACTED"
