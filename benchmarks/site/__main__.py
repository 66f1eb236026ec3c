"""What a site takes as it grows: every part from the nodes to the pages, on this machine.

    python -m benchmarks.site chain                          # 100 and 1000 nodes, some 10 minutes
    python -m benchmarks.site chain --nodes 100 --store prometheus
    python -m benchmarks.site sizes                          # bytes of a sample and of a job

`chain`: simulated nodes, which say what a real exporter says of a made tree of cgroups; a real
VictoriaMetrics or Prometheus that scrapes them; a real poller on a real PostgreSQL, which reads
their jobs' records; a real server, and clients that each ask every two seconds. All share the
machine, and its CPU is what each had. Figures of the largest two sizes are extended in a straight
line to 10,000 nodes. `sizes`: samples of a day on disk, and jobs with and without steps in SQLite
and PostgreSQL. Needs root, PostgreSQL and the store.
"""

import argparse
import os
from collections.abc import Mapping, Sequence

from benchmarks.site import sizes
from benchmarks.site.chain import Form
from benchmarks.site.figures import exposition, measured

EXTENDED = 10_000


def extended(sizes: Sequence[int], values: Sequence[float], to: int) -> float:
    """In a straight line through the two largest."""
    (x0, x1), (y0, y1) = sizes[-2:], values[-2:]
    return y1 + (y1 - y0) * (to - x1) / (x1 - x0)


def table(found: Mapping[int, Mapping[str, float]]) -> str:
    """A row for each figure, a column for each size; of two or more, the extension."""
    sizes = sorted(found)
    names = dict.fromkeys(name for size in sizes for name in found[size])
    extend = len(sizes) > 1 and sizes[-1] < EXTENDED
    head = [f"{size} nodes" for size in sizes] + [f"{EXTENDED}, extended"] * extend
    lines = [f"{'':36}" + "".join(f"{each:>18}" for each in head)]
    for name in names:
        values = [found[size].get(name, float("nan")) for size in sizes]
        if extend:
            values.append(extended(sizes, values, EXTENDED))
        lines.append(f"{name:36}" + "".join(f"{value:>18,.{digits(value)}f}" for value in values))
    return "\n".join(lines)


def digits(value: float) -> int:
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    chain = commands.add_parser("chain")
    chain.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    chain.add_argument("--jobs", type=int, default=10, help="on each node at once")
    chain.add_argument("--job-seconds", type=float, default=600.0, help="mean length of a job")
    chain.add_argument("--interval", type=float, default=30.0, help="of scrapes and polls")
    chain.add_argument("--clients", type=int, default=50)
    chain.add_argument("--store", choices=["victoria-metrics", "prometheus"],
                       default="victoria-metrics")  # fmt: skip
    commands.add_parser("sizes")
    given = parser.parse_args()
    text = exposition(getattr(given, "jobs", 10))
    if given.command == "sizes":
        sizes.show(text)
        return
    found = {}
    for nodes in given.nodes:
        form = Form(
            nodes, given.jobs, given.job_seconds, given.interval, given.clients, store=given.store
        )
        print(f"{form}, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs", flush=True)
        found[nodes] = measured(form, text)
        print(table({nodes: found[nodes]}), flush=True)
    if len(found) > 1:
        print(table(found))


if __name__ == "__main__":
    main()
