"""Compares the names of nodes: the scheduler's, the host's own, and those of scrape targets.

A scheduler knows `n1`, the host calls itself `n1.cluster.example`, and the target is
`n1.cluster.example:9400`. Slurm's NodeName may also differ from its NodeHostName (slurm.conf(5)).
"""

from collections.abc import Iterable
from ipaddress import ip_address


def without_port(instance: str) -> str:
    """The node in a target's `instance`."""
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else instance


def short_name(name: str) -> str:
    """The name up to its first dot, in lower case; an address is not shortened."""
    first, dot, _ = name.rstrip(".").lower().partition(".")
    if dot and first.isdigit():
        try:
            return str(ip_address(name))
        except ValueError:
            pass
    return first


class NodeNames:
    """A set of nodes that also contains their other names.

    A short name is that of any host with a longer one; two longer ones must be equal, since
    domains tell the nodes of two clusters apart.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_normal(name) for name in names)
        self._short = {short_name(name) for name in self._names}

    def __contains__(self, name: str) -> bool:
        """Whether a name, or the `instance` of a target, is that of one of the nodes."""
        full = _normal(without_port(name))
        short = short_name(full)
        return full in self._names or short in (self._short if full == short else self._names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeNames) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)


def _normal(name: str) -> str:
    return name.rstrip(".").lower()
