"""Host lists as schedulers write them, node by node.

Sources: Slurm's host list expressions (scontrol(1) "show hostnames", slurm.conf(5) NodeName),
PBS' exec_host and exec_vnode (pbs_job_attributes(7B)), LSF's execution hosts (lsb.acct(5)).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from batchjob.schedulers.slurm.formats import size_bytes

LIMIT = 250_000  # hosts; no cluster has more, and a mistyped range may stand for 10^12

_NONE = ("", "(null)", "None", "None assigned", "n/a")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_DEEPEST = 8  # brackets in brackets


class HostListError(ValueError):
    """Not a host list, or one of more hosts than the limit."""


def slurm_hosts(text: str, limit: int = LIMIT) -> list[str]:
    """The hosts of `gpu[01-02,7]x[0-1],login1`, in its order.

    The lower bound's width pads its range. Brackets may follow one another, be followed by a
    suffix and stand inside each other. What stands for "no nodes" gives an empty list.
    """
    if text in _NONE:
        return []
    hosts: list[str] = []
    for word in _words(text):
        hosts += _product(word, limit - len(hosts))
    return hosts


def _words(text: str) -> Iterator[str]:
    """Split at the commas that stand in no brackets."""
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


class NodeShareOfHosts(NamedTuple):
    """What a job has on one host; None where the list does not say."""

    cpus: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None

    def plus(self, other: "NodeShareOfHosts") -> "NodeShareOfHosts":
        """Both together; a part that only one of them says is that one's."""
        return NodeShareOfHosts(
            *(
                mine if theirs is None else (mine or 0) + theirs
                for mine, theirs in zip(self, other, strict=True)
            )
        )


def pbs_exec_host(text: str) -> dict[str, NodeShareOfHosts]:
    """Hosts of `n1/0*8+n2/3` (PBS: `*8` CPUs), `n1/7+n1/6` or `n1/0-7` (Torque: slots)."""
    return _summed((host, NodeShareOfHosts(cpus)) for host, cpus in _exec_hosts(text))


def _exec_hosts(text: str) -> Iterator[tuple[str, int]]:
    for item in text.split("+"):
        host, slash, slot = item.partition("/")
        if not host or not slash:
            raise HostListError(f"not an exec_host: {text[:80]!r}")
        index, star, count = slot.partition("*")
        bounds = [_RANGE.fullmatch(part) for part in index.split(",")]
        if star:
            yield host, _count(count, text)
        elif any(bounds) or "," in index:
            spans = (1 if b is None else int(b[2]) - int(b[1]) + 1 for b in bounds)
            yield host, sum(spans)
        else:
            yield host, 1


def _count(text: str, whole: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise HostListError(f"expected a number, got {text[:20]!r} in {whole[:80]!r}")


def pbs_exec_vnode(exec_vnode: str, exec_host: str) -> dict[str, NodeShareOfHosts]:
    """Shares per host from `(n1[0]:ncpus=4+n1[1]:ncpus=4)+(n2:ncpus=8:mem=2gb:ngpus=1)`.

    A chunk in parentheses may lie on several vnodes; the host that has them is the chunk's
    counterpart in exec_host. Where the two do not match, vnode names stand for hosts.
    """
    if not (exec_vnode.startswith("(") and exec_vnode.endswith(")")):
        raise HostListError(f"not an exec_vnode: {exec_vnode[:80]!r}")
    chunks = exec_vnode[1:-1].split(")+(")
    hosts = [host for host, _ in _exec_hosts(exec_host)] if exec_host else []
    if len(hosts) != len(chunks):
        hosts = []
    return _summed(
        (hosts[at] if hosts else vnode.split(":", 1)[0], _vnode_share(vnode))
        for at, chunk in enumerate(chunks)
        for vnode in chunk.split("+")
    )


def _vnode_share(vnode: str) -> NodeShareOfHosts:
    resources = dict(part.split("=", 1) for part in vnode.split(":")[1:] if "=" in part)
    cpus, memory, gpus = (resources.get(name) for name in ("ncpus", "mem", "ngpus"))
    return NodeShareOfHosts(
        None if cpus is None else _count(cpus, vnode),
        None if memory is None else size_bytes(memory),
        None if gpus is None else _count(gpus, vnode),
    )


def lsf_hosts(words: Iterable[str]) -> dict[str, NodeShareOfHosts]:
    """Hosts of `h1 h1 h2` or `2*h1 h2`: one slot each time a host is named."""
    return _summed(_lsf_host(word) for word in words if word)


def _lsf_host(word: str) -> tuple[str, NodeShareOfHosts]:
    count, star, host = word.partition("*")
    return (host, NodeShareOfHosts(_count(count, word))) if star else (word, NodeShareOfHosts(1))


def _summed(parts: Iterable[tuple[str, NodeShareOfHosts]]) -> dict[str, NodeShareOfHosts]:
    shares: dict[str, NodeShareOfHosts] = {}
    for host, share in parts:
        known = shares.get(host)
        shares[host] = share if known is None else known.plus(share)
    return shares


def spread(hosts: Sequence[str], total: int | None) -> dict[str, NodeShareOfHosts]:
    """Hosts with a total that is known per host only if there is but one."""
    return {host: NodeShareOfHosts(total if len(hosts) == 1 else None) for host in hosts}
