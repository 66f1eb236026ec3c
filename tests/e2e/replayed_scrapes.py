"""The last recorded scrapes of exporters, served again as if the jobs of the recording ran now.

By then, the exporters have told all. Times of day are moved by as much as the last scrape but one.
After the last, counters continue each second at the rate between these two, and all else stays.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.helpers.http_server import Request, Response, serving

SERVED = 2  # of the scrapes with jobs
TIMES = ("_time_seconds", "_timestamp_seconds")


class Replay(NamedTuple):
    """The exporters, which serve what there was before the jobs until `begin` is called."""

    exporters: Mapping[str, str]  # addresses by name
    begin: Callable[[], float]  # when the jobs began, which is before their first scrape


@contextlib.contextmanager
def replayed(recording: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Replay]:
    """Serve a recording of `guest_slurm_gpus`; `names` are new names of the exporters."""
    began: list[float] = []
    served = recording["during"][-SERVED:]

    def begin() -> float:
        first = max(at for at, _ in served[0].values()) - recording["began"]
        began.append(time.time() - first)
        return began[0]

    def answer(recorded: str) -> Callable[[Request], Response]:
        during = [(at - recording["began"], text) for at, text in _of(served, recorded)]
        _, before = _of(recording["before"], recorded)[-1]

        def respond(_: Request) -> Response:
            if not began:
                return Response(before.encode())
            moved = began[0] - recording["began"]
            return Response(_text(during, time.time() - began[0], moved).encode())

        return respond

    with contextlib.ExitStack() as made:
        servers = {
            name: made.enter_context(serving(answer(recorded))) for recorded, name in names.items()
        }
        yield Replay({name: f"127.0.0.1:{server.port}" for name, server in servers.items()}, begin)


def _of(phase: list[dict[str, tuple[float, str]]], exporter: str) -> list[tuple[float, str]]:
    return [scrapes[exporter] for scrapes in phase]


def _text(scrapes: list[tuple[float, str]], seconds: float, moved: float) -> str:
    """The exposition at a number of seconds since the jobs' begin."""
    at, text = max((each for each in scrapes if each[0] <= seconds), key=lambda each: each[0])
    rates = _rates(scrapes[0], scrapes[-1]) if at == scrapes[-1][0] else {}
    more = int(seconds - at)

    def line(series: str, value: str) -> str:
        if series.partition("{")[0].endswith(TIMES):
            return f"{series} {float(value) + moved}"
        return f"{series} {float(value) + rates.get(series, 0.0) * more}"

    return "".join(
        f"{each if each.startswith('#') else line(*each.rsplit(' ', 1))}\n"
        for each in text.splitlines()
    )


def _rates(first: tuple[float, str], last: tuple[float, str]) -> dict[str, float]:
    """What each counter grows by in a second."""
    values = _counters(first[1])
    seconds = last[0] - first[0]
    return {
        series: (value - values[series]) / seconds
        for series, value in _counters(last[1]).items()
        if series in values
    }


def _counters(text: str) -> dict[str, float]:
    lines = (each.rsplit(" ", 1) for each in text.splitlines() if not each.startswith("#"))
    return {
        series: float(value)
        for series, value in lines
        if series.partition("{")[0].endswith("_total")
    }
