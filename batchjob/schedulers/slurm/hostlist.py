"""Expands Slurm's host list expressions.

Source: scontrol(1) "show hostnames", slurm.conf(5) NodeName.
"""

import re
from collections.abc import Iterator

from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.slurm.formats import Resources

LIMIT = 250_000  # hosts; no cluster has more, but a mistyped range can expand to 10^12

_NO_HOSTS = ("", "(null)", "None", "None assigned", "n/a")
_TOKEN = re.compile(r"[\[\],]|[^\[\],]+")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_ONE_HOST = re.compile(r"[\w.-]+", re.ASCII)
_MAX_DEPTH = 8  # maximum depth of nested brackets


def slurm_hosts(text: str, limit: int = LIMIT) -> list[str]:
    """The hosts of `gpu[01-02,7]x[0-1],login1`, in this order.

    Numbers of a range are padded to the width of its lower bound. Brackets may follow one another,
    be followed by a suffix, and be nested. What Slurm writes for "no nodes" gives an empty list.
    """
    if text in _NO_HOSTS:
        return []
    if _ONE_HOST.fullmatch(text):  # the most common case
        return [text]
    return _expand_list(iter((*_TOKEN.findall(text), "")), limit, text, 0)


def _expand_list(tokens: Iterator[str], limit: int, text: str, depth: int) -> list[str]:
    """The names up to the bracket that closes the list; at depth 0, up to the end of the text."""
    found: list[str] = []
    names = [""]  # of the current word
    while True:
        part = next(tokens)
        if part == "[" and depth < _MAX_DEPTH:
            choices = _expand_list(tokens, limit, text, depth + 1)
            if len(names) * len(choices) > limit:
                raise _too_many()
            names = [name + choice for name in names for choice in choices]
        elif part == "," or part == ("]" if depth else ""):
            if names == [""]:
                raise ValueError(f"empty name or blank in host list {text[:80]!r}")
            bounds = _RANGE.fullmatch(names[0]) if depth and len(names) == 1 else None
            found += _numbers(bounds, limit - len(found)) if bounds else names
            if len(found) > limit:
                raise _too_many()
            if part != ",":
                return found
            names = [""]
        elif part in ("[", "]", ""):
            raise ValueError(f"brackets do not match in host list {text[:80]!r}")
        elif any(map(str.isspace, part)):
            raise ValueError(f"empty name or blank in host list {text[:80]!r}")
        else:
            names = [name + part for name in names]


def _numbers(bounds: re.Match[str], limit: int) -> list[str]:
    low, high = bounds.groups()
    if int(high) < int(low):
        raise ValueError(f"not a range: {bounds[0][:80]!r}")
    if int(high) - int(low) + 1 > limit:
        raise _too_many()
    return [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]


def _too_many() -> ValueError:
    return ValueError("host list with more hosts than the limit")


def node_shares(
    text: str, allocated: Resources, field: str, parse_errors: list[str]
) -> tuple[NodeShare, ...]:
    """A job's nodes; its share of a node is known only if it has a single node.

    For a list that cannot be parsed, there are no nodes, and an error is added for `field`.
    """
    try:
        hosts = slurm_hosts(text)
    except ValueError as error:
        parse_errors.append(f"{field}: {error}")
        return ()
    if len(hosts) == 1:
        return (NodeShare(hosts[0], allocated.cpus, allocated.memory_bytes, allocated.gpus),)
    return tuple(NodeShare(host) for host in dict.fromkeys(hosts))
