"""Small pieces of HTML for the rows of tables.

Functions are several times as fast as macros of a template.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from batchjob.judgements import COMPLETE_COVERAGE
from batchjob_stats_server.pages.rendering import links, usage_bars
from batchjob_stats_server.pages.rendering.template_filters import absent, percent, trusted_html
from batchjob_stats_server.pages.rendering.usage_bars import UsageBar
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import Row

_SPOKEN_LEVELS = ("low", "high")
_DEPENDED_ON = re.compile(
    r"(?<=[:(])\d+(?:_\d+|\[\d*\])?(?:\.[a-z][\w.-]*)?(?!\w)|(?<=:)\d+(?=_\*)", re.ASCII | re.I
)
"""The ids in `afterok:12:34_5(unfulfilled)`, `afterany:12.pbs01@pbs01` and `done(12)`."""
_MAX_CELLS = 32  # maximum GPUs shown in a row of a list
_CELL_WIDTH = 7
_MAX_CELLS_WIDTH = 56  # maximum width of all of them


def escape_id(text: str) -> Markup:
    """Escape a text; faster than `escape` for letters and digits only, as in most ids."""
    return trusted_html(text) if text.isalnum() else escape(text)


@functools.lru_cache(4096)
def escape_repeated(text: str) -> Markup:
    """Escape a text that occurs in many rows; cached."""
    return escape(text)


def usage_bar(bar: UsageBar | None) -> Markup:
    if bar is None:
        return Markup()
    if bar.ratio is None:
        return absent(bar.reason)
    return _usage_bar(bar.level, bar.detail, percent(bar.ratio))


@functools.lru_cache(4096)
def _usage_bar(level: str, detail: str, percent_text: str, words: str = "") -> Markup:
    """Cached, since most bars occur several times; the width is that of the rounded number."""
    spoken_level = (
        f'<span class="visually-hidden"> ({level})</span>' if level in _SPOKEN_LEVELS else ""
    )
    width = min(float(percent_text.rstrip("\u202f%")), 100.0)
    return trusted_html(
        f'<span class="bar {level}" title="{escape(detail)}">'
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill" width="{width:.1f}" height="8"/></svg>'
        f"{words or percent_text}{spoken_level}</span>"
    )


def amount_bar(used: float, held: float, words: str) -> Markup:
    """What is used of what is held, in words beside a bar without judgement."""
    return _usage_bar("plain", percent(used / held), percent(used / held), words)


def part_measured(seconds: float, sums: Mapping[Any, Any]) -> Markup:
    """Of how much of the CPU time allocated a sum of energy or emissions is, unless of all."""
    allocated = sums["cpu_allocated_seconds"]
    if not seconds or not allocated or seconds >= COMPLETE_COVERAGE * allocated:
        return Markup()
    return trusted_html(f"<small>of {percent(seconds / allocated)} of the CPU time</small>")


@functools.lru_cache(64)
def state_badge(state: str, number: str = "") -> Markup:
    words = f"{number} {state.lower().replace('_', ' ')}".strip()
    return Markup('<span class="state {}">{}</span>').format(state.lower(), words)


def job_state(row: Row) -> Markup:
    """A job's state, with the reason why its clock stands still; those of an array's tasks."""
    if row.get("array_states"):
        states = (each.split(" ") for each in row["array_states"].split(", "))
        return Markup(" ").join(state_badge(name, number) for number, name in states)
    badge, note = state_badge(row["state"]), explain.as_of(row)
    return badge + trusted_html(f" <small>{note}</small>") if note else badge


def gpu_cells(ratios: Sequence[float | None]) -> Markup:
    """A cell for each GPU of a job, filled by utilisation; empty for a single one."""
    if len(ratios) < 2:
        return Markup()
    shown = ratios[:_MAX_CELLS]
    description = ", ".join(["not measured" if each is None else percent(each) for each in shown])
    more = f" and {len(ratios) - _MAX_CELLS} more" if len(ratios) > _MAX_CELLS else ""
    width = len(shown) * _CELL_WIDTH
    cells = "".join([_gpu_cell(usage_bars.gpu_cell_class(each), x) for x, each in enumerate(shown)])
    return trusted_html(
        f'<svg class="cells" viewBox="0 0 {width} 8" width="{min(width, _MAX_CELLS_WIDTH)}" '
        f'height="8" preserveAspectRatio="none" role="img" '
        f'aria-label="Use of its GPUs: {description}{more}">{cells}</svg>'
    )


@functools.cache
def _gpu_cell(level: str, index: int) -> str:
    return f'<rect class="{level}" x="{index * _CELL_WIDTH}" y="0" width="6" height="8"/>'


def jobid(row: Row) -> Markup:
    """The id as shown: `ARRAY_INDEX`, `ARRAY[]`, `HETJOB+OFFSET`, or the beginning of a UUID."""
    if row.get("array_states"):
        return escape(f"{row['array_jobid']}[]")
    if row["array_jobid"] and row["array_index"] is not None:
        return trusted_html(f"{escape_id(row['array_jobid'])}_{row['array_index']}")
    if row["het_jobid"] and row["het_offset"] is not None:
        return trusted_html(f"{escape_id(row['het_jobid'])}+{row['het_offset']}")
    whole = row["jobid"]
    if len(whole) == 36:
        return trusted_html(f'<span title="{escape(whole)}">{escape(whole[:8])}…</span>')
    return escape_id(whole)


def job_link(row: Row) -> Markup:
    address = links.job_path(row)
    if row.get("array_states"):
        address = links.path("jobs", array_jobid=row["array_jobid"], cluster=row["cluster"])
    # The rest of the address is percent-encoded.
    return trusted_html(f'<a href="{address.replace("&", "&amp;")}">{jobid(row)}</a>')


def dependencies(row: Row) -> Markup:
    """What a job depends on, in its scheduler's notation, with a link for each job's id."""

    def link(found: re.Match[str]) -> str:
        address = links.path("jobs", _whole_id(found[0], row), cluster=row["cluster"])
        return f'<a href="{escape(address)}">{found[0]}</a>'

    return trusted_html(_DEPENDED_ON.sub(link, str(escape(row["dependencies"]))))


def depends_on(row: Row, other: Row) -> bool:
    """Whether a job depends on another one, or on its whole array."""
    named = {_whole_id(each, row) for each in _DEPENDED_ON.findall(row["dependencies"])}
    array = other["array_jobid"]
    return not named.isdisjoint({other["jobid"], array, f"{array}_{other['array_index']}"} - {""})


def _whole_id(jobid: str, row: Row) -> str:
    """The id of an array, or of a job with the server's name, which PBS' accounting leaves out."""
    if "[]" in jobid:
        return jobid.partition("[")[0]
    _, dot, server = row["jobid"].partition(".")
    return jobid if "." in jobid else f"{jobid}{dot}{server}"


@functools.lru_cache(4096)
def node_link(
    cluster: str, node: str, since: int | None = None, until: int | None = None
) -> Markup:
    path = links.path("clusters", cluster, "nodes", node, since=since, until=until)
    return trusted_html(f'<a href="{escape(path)}">{escape(node)}</a>')


def job_name(row: Row) -> Markup:
    """The job's name; a long one is truncated, with the whole name as its tooltip."""
    if not row["name"]:
        return absent("the job has no name")
    full_name = escape_repeated(row["name"])
    return trusted_html(f'<span title="{full_name}">{full_name}</span>')


@functools.lru_cache(1024)
def user_link(user: str) -> Markup:
    return trusted_html(f'<a href="{escape(links.path("jobs", user=user))}">{escape(user)}</a>')


@functools.lru_cache(64)
def cluster_link(cluster: str) -> Markup:
    return trusted_html(
        f'<a href="{escape(links.path("clusters", cluster))}">{escape(cluster)}</a>'
    )
