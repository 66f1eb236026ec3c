"""Expands Slurm's host list expressions.

Source: scontrol(1) "show hostnames", slurm.conf(5) NodeName.
"""

import re
from collections.abc import Iterator

from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.slurm.formats import Resources

LIMIT = 250_000  # hosts; no cluster has more, but a mistyped range can expand to 10^12

_NO_HOSTS = ("", "(null)", "None", "None assigned", "n/a")
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
    hosts: list[str] = []
    for word in _split_words(text):
        hosts += _expand_word(word, limit - len(hosts))
    return hosts


def _split_words(text: str) -> Iterator[str]:
    if "[" not in text and "]" not in text:
        yield from (_check_word(word, text) for word in text.split(","))
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
            yield _check_word(text[begin:at], text)
            begin = at + 1
        if depth > _MAX_DEPTH:
            break
    if depth:
        raise ValueError(f"brackets do not match in host list {text[:80]!r}")
    yield _check_word(text[begin:], text)


def _check_word(word: str, text: str) -> str:
    if not word or any(map(str.isspace, word)):
        raise ValueError(f"empty name or blank in host list {text[:80]!r}")
    return word


def _expand_word(word: str, limit: int) -> list[str]:
    """All host names of one word, which consists of literals and bracketed choices."""
    names, begin = [""], 0
    while (opening := word.find("[", begin)) >= 0:
        closing = _find_closing_bracket(word, opening)
        choices = _expand_choices(word[opening + 1 : closing], limit)
        if len(names) * len(choices) > limit:
            raise _too_many()
        literal = word[begin:opening]
        names = [name + literal + choice for name in names for choice in choices]
        begin = closing + 1
    if len(names) > limit:
        raise _too_many()
    return [name + word[begin:] for name in names]


def _find_closing_bracket(word: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(word)):
        depth += (word[at] == "[") - (word[at] == "]")
        if depth == 0:
            return at
    raise ValueError(f"brackets do not match in host list {word[:80]!r}")


def _expand_choices(body: str, limit: int) -> list[str]:
    choices: list[str] = []
    for item in _split_words(body):
        bounds = _RANGE.fullmatch(item)
        if bounds:
            low, high = bounds.groups()
            if int(high) < int(low):
                raise ValueError(f"not a range: {item[:80]!r}")
            if int(high) - int(low) + 1 > limit - len(choices):
                raise _too_many()
            width = len(low)
            choices += [f"{number:0{width}d}" for number in range(int(low), int(high) + 1)]
        else:
            choices += _expand_word(item, limit - len(choices))
    return choices


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
