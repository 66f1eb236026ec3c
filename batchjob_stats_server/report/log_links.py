"""Links from a job to the lines that its nodes wrote during it, in Loki or VictoriaLogs.

The site gives the address with `{cluster}`, `{node}` and so on, as it is in the browser when such a
query is shown. The log database decides who may read the lines: nothing is queried here.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

from batchjob.runtime.times import rfc3339
from batchjob_stats_server.report.model import LogLink, ReportInput

_PAD_SECONDS = 60  # before and after the job: prolog, epilog, and clocks that differ a little
_NODES_PER_LINK = 50  # browsers and proxies limit the length of an address
_MAX_LINKS = 20
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# Characters that do not end a text in a query or in JSON.
_PLAIN = re.compile(r"[\w.@:+,\[\]|-]+", re.ASCII)

_NAMES = ("cluster", "node", "job", "user", "start", "end", "start_ms", "end_ms")


def parse_log_address(value: Any) -> str:
    """An http or https address with placeholders; raises ValueError."""
    text = str(value)
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # "Invalid IPv6 URL"
        is_address = False
    named = set(_PLACEHOLDER.findall(text))
    if not is_address or re.search(r"\s", text) or not named:
        raise ValueError(f"expected https://HOST/... with {{node}}, {{start}}, ..., got {value!r}")
    if unknown := sorted(named - set(_NAMES)):
        known = ", ".join(f"{{{name}}}" for name in _NAMES)
        raise ValueError(f"{{{unknown[0]}}}: expected one of {known}")
    return text


def log_links(address: str, inputs: ReportInput) -> Iterator[LogLink]:
    """Links for a job that has started, each for up to 50 of its nodes; the first thousand."""
    job = inputs.job
    nodes = [row["node"] for row in inputs.shares]
    if not address or job["start_time"] is None:
        return
    start = int(job["start_time"]) - _PAD_SECONDS
    end = int(job["end_time"] or inputs.now) + _PAD_SECONDS
    for first in islice(range(0, len(nodes), _NODES_PER_LINK), _MAX_LINKS):
        some = nodes[first : first + _NODES_PER_LINK]
        values = (job["cluster"], "|".join(some), job["jobid"], job["username"],
                  rfc3339(start), rfc3339(end), start * 1000, end * 1000)  # fmt: skip
        texts = {name: str(value) for name, value in zip(_NAMES, values, strict=True)}
        if all(_PLAIN.fullmatch(texts[name]) for name in _PLACEHOLDER.findall(address)):
            title = some[0] if len(some) == 1 else f"{some[0]} … {some[-1]}"
            yield LogLink(title, _fill_in(address, texts))


def _fill_in(address: str, texts: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: quote(texts[found[1]], safe=""), address)
