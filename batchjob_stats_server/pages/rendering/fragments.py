"""Small pieces of HTML that occur in most rows of most tables.

Functions write them: calling a macro of a template takes several times as long.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import links, usage_bars
from batchjob_stats_server.pages.rendering.sparklines import Sparkline
from batchjob_stats_server.pages.rendering.template_filters import absent, share
from batchjob_stats_server.pages.rendering.usage_bars import UsageBar

Row = Mapping[Any, Any]

_SPOKEN = ("low", "high")
# A script that finds one reloads the page soon.
_LATE = Markup('<span class="late">{}</span>').format(absent("no measurements in time"))
_CELLS = 32  # maximum GPUs shown in a row of a list
_CELL_WIDTH = 7
_CELLS_WIDTH = 56  # maximum width of all of them


def html(text: str) -> Markup:
    """Markup composed here from escaped parts."""
    return str.__new__(Markup, text)  # Markup's own looks for `__html__`, which is slow


def escaped(text: str) -> Markup:
    """The text, escaped; most ids consist of letters and digits alone."""
    return html(text) if text.isalnum() else escape(text)


@functools.lru_cache(4096)
def words(text: str) -> Markup:
    """The text, escaped, and cached for texts that occur in many rows."""
    return escape(text)


def bar(used: UsageBar | None) -> Markup:
    """A fraction as a bar and a number; empty if there is none."""
    if used is None:
        return Markup()
    if used.ratio is None:
        return absent(used.reason)
    return _bar(used.level, used.detail, share(used.ratio))


@functools.lru_cache(4096)
def _bar(level: str, detail: str, shown: str) -> Markup:
    """As full as its number says: most bars of a page stand there several times."""
    spoken = f'<span class="visually-hidden"> ({level})</span>' if level in _SPOKEN else ""
    width = min(float(shown.rstrip("\u202f%")), 100)
    return html(
        f'<span class="bar {level}" title="{escape(detail)}">'
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill" width="{width:.1f}" height="8"/></svg>{shown}{spoken}</span>'
    )


@functools.lru_cache(64)
def state(word: str) -> Markup:
    """A state as a badge."""
    lower = word.lower()
    return Markup('<span class="state {}">{}</span>').format(lower, lower.replace("_", " "))


def spark(course: Sparkline | None) -> Markup:
    """A sparkline; None: it was not ready in time."""
    if course is None:
        return _LATE
    if not course.path:
        return absent(course.words)
    told = escape(course.words)
    return html(
        '<svg class="spark" viewBox="0 -1 100 22" preserveAspectRatio="none" role="img" '
        f'aria-label="{told}"><title>{told}</title><path class="line" d="{course.path}"/></svg>'
    )


def gpu_cells(ratios: Sequence[float | None]) -> Markup:
    """A cell for each GPU of a job, filled by utilisation; empty for a single one."""
    if len(ratios) < 2:
        return Markup()
    shown = ratios[:_CELLS]
    told = ", ".join(["not measured" if each is None else share(each) for each in shown])
    more = f" and {len(ratios) - _CELLS} more" if len(ratios) > _CELLS else ""
    width = len(shown) * _CELL_WIDTH
    cells = "".join([_gpu_cell(usage_bars.cell(each), x) for x, each in enumerate(shown)])
    return html(
        f'<svg class="cells" viewBox="0 0 {width} 8" width="{min(width, _CELLS_WIDTH)}" height="8" '
        f'preserveAspectRatio="none" role="img" '
        f'aria-label="Use of its GPUs: {told}{more}">{cells}</svg>'
    )


@functools.cache
def _gpu_cell(level: str, place: int) -> str:
    return f'<rect class="{level}" x="{place * _CELL_WIDTH}" y="0" width="6" height="8"/>'


def jobid(row: Row) -> Markup:
    """The id for people: the task of an array, the part of a het job, a prefix of a UUID."""
    if row["array_jobid"] and row["array_index"] is not None:
        return html(f"{escaped(row['array_jobid'])}_{row['array_index']}")
    if row["het_jobid"] and row["het_offset"] is not None:
        return html(f"{escaped(row['het_jobid'])}+{row['het_offset']}")
    whole = row["jobid"]
    if len(whole) == 36:
        return html(f'<span title="{escape(whole)}">{escape(whole[:8])}…</span>')
    return escaped(whole)


def job_link(row: Row) -> Markup:
    """A run's id with a link to its page."""
    # The rest of the address is percent-encoded.
    return html(f'<a href="{links.job(row).replace("&", "&amp;")}">{jobid(row)}</a>')


@functools.lru_cache(4096)
def node_link(
    cluster: str, node: str, since: int | None = None, until: int | None = None
) -> Markup:
    """A node with a link to its page, at a time."""
    path = links.path("clusters", cluster, "nodes", node, since=since, until=until)
    return html(f'<a href="{escape(path)}">{escape(node)}</a>')


def name(row: Row) -> Markup:
    """The job's name; a long one is truncated, with the whole name as its tooltip."""
    if not row["name"]:
        return absent("the job has no name")
    called = words(row["name"])
    return html(f'<span title="{called}">{called}</span>')


@functools.lru_cache(1024)
def user_link(user: str) -> Markup:
    """A user with a link to their jobs."""
    return html(f'<a href="{escape(links.path("jobs", user=user))}">{escape(user)}</a>')


@functools.lru_cache(64)
def cluster_link(cluster: str) -> Markup:
    """A cluster with a link to its page."""
    return html(f'<a href="{escape(links.path("clusters", cluster))}">{escape(cluster)}</a>')
