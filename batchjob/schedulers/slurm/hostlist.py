"""Slurm's host list expressions, host by host.

Source: scontrol(1) "show hostnames", slurm.conf(5) NodeName.
"""

import re
from collections.abc import Iterator

from batchjob.schedulers.fields import HostListError
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.slurm.formats import Resources

LIMIT = 250_000  # hosts; no cluster has more, but a mistyped range can expand to 10^12

_NONE = ("", "(null)", "None", "None assigned", "n/a")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_ONE_HOST = re.compile(r"[\w.-]+", re.ASCII)
_DEEPEST = 8  # maximum depth of nested brackets


def slurm_hosts(text: str, limit: int = LIMIT) -> list[str]:
    """The hosts of `gpu[01-02,7]x[0-1],login1`, in its order.

    The lower bound's width pads its range. Brackets may follow one another, be followed by a
    suffix and stand inside each other. What stands for "no nodes" gives an empty list.
    """
    if text in _NONE:
        return []
    if _ONE_HOST.fullmatch(text):  # the most common case
        return [text]
    hosts: list[str] = []
    for word in _words(text):
        hosts += _product(word, limit - len(hosts))
    return hosts


def _words(text: str) -> Iterator[str]:
    """Split at the commas that stand in no brackets."""
    if "[" not in text and "]" not in text:
        yield from (_word(word, text) for word in text.split(","))
        return
    depth = begin = 0
    for at, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
            if depth < 0:
                break
        elif character == "," and depth == 0:
            yield _word(text[begin:at], text)
            begin = at + 1
        if depth > _DEEPEST:
            break
    if depth:
        raise HostListError(f"brackets do not match in host list {text[:80]!r}")
    yield _word(text[begin:], text)


def _word(word: str, text: str) -> str:
    if not word or any(map(str.isspace, word)):
        raise HostListError(f"empty name or blank in host list {text[:80]!r}")
    return word


def _product(word: str, room: int) -> list[str]:
    """All names of one word: literals and bracketed choices in turn."""
    names, begin = [""], 0
    while (opening := word.find("[", begin)) >= 0:
        closing = _closing(word, opening)
        choices = _choices(word[opening + 1 : closing], room)
        if len(names) * len(choices) > room:
            raise _too_many()
        literal = word[begin:opening]
        names = [name + literal + choice for name in names for choice in choices]
        begin = closing + 1
    if len(names) > room:
        raise _too_many()
    return [name + word[begin:] for name in names]


def _closing(word: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(word)):
        depth += (word[at] == "[") - (word[at] == "]")
        if depth == 0:
            return at
    raise HostListError(f"brackets do not match in host list {word[:80]!r}")


def _choices(body: str, room: int) -> list[str]:
    choices: list[str] = []
    for item in _words(body):
        bounds = _RANGE.fullmatch(item)
        if bounds:
            low, high = bounds.groups()
            if int(high) < int(low):
                raise HostListError(f"not a range: {item[:80]!r}")
            if int(high) - int(low) + 1 > room - len(choices):
                raise _too_many()
            width = len(low)
            choices += [f"{number:0{width}d}" for number in range(int(low), int(high) + 1)]
        else:
            choices += _product(item, room - len(choices))
    return choices


def _too_many() -> HostListError:
    return HostListError("host list with more hosts than the limit")


def node_shares(
    text: str, allocated: Resources, name: str, complaints: list[str]
) -> tuple[NodeShare, ...]:
    """A job's nodes; what it has on each is known where there is but one.

    A list that cannot be read is no nodes and a complaint about the field `name`.
    """
    try:
        hosts = slurm_hosts(text)
    except HostListError as error:
        complaints.append(f"{name}: {error}")
        return ()
    if len(hosts) == 1:
        return (NodeShare(hosts[0], allocated.cpus, allocated.memory_bytes, allocated.gpus),)
    return tuple(NodeShare(host) for host in dict.fromkeys(hosts))
