"""Hostile PromQL through the gate to real databases, whose memory it must not exhaust."""

import asyncio
import contextlib

import pytest

from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_server.promql.backend import PromqlBackend, Rejected
from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.query_limits import (
    QueryError,
    QueryLimits,
    QueryWindow,
    Unavailable,
)
from batchjob_stats_server.promql.rewrite import confine
from tests.batchjob_stats_db.tsdb import run_prometheus, run_victoria_metrics
from tests.security.hostile_promql import AMPLIFYING_QUERIES, INFO, SLOW_QUERIES, nested

pytestmark = pytest.mark.e2e

T = 1_700_000_400
JOBS = 1000
ALICE = Confinement.of(Access((ClusterLogin("c1", "alice"),)), ())
MAX_GROWTH_BYTES = 400 << 20  # without bounds: several GB within seconds
TIMEOUT_SECONDS = 10.0

QUERIES_AT_THE_LIMITS = {
    "references": nested(
        3,
        f'label_replace({INFO},"x","{"a" * 128}","","")',
        'label_replace(%s,"x","$1$1","x","(.*)")',
    ),
    "joined labels": nested(2, INFO, 'label_join(%s,"x","' + "-" * 128 + '","x","x","x","x")'),
    "literals": nested(8, INFO, f'label_replace(%s,"x","{"a" * 128}","","")'),
    "copied labels": (
        f"{INFO} * on (instance, jobid) group_left (x) {INFO} "
        f"* on (instance, jobid) group_left (x) {INFO}"
    ),
    "copied labels of series made alike": (
        f'label_replace(label_replace({INFO},"jobid","1","",""),"instance","n1","","") '
        f"* on (instance, jobid) group_left (x) {INFO}"
    ),
    "values": f'count_values("y", {INFO})',
    "counts": r'{x=~".*a{200}.*"}',
    "classes": '{x=~"' + r"\\pL" * 1000 + '"}',
    "alternatives": '{x=~"' + "(a|b|cd)" * 440 + '"}',
    "selectors": " or ".join([INFO] * 32),
    "subqueries": f"max_over_time(max_over_time({INFO}[1h:20s])[1h:20s])",
    "time": f"max_over_time({INFO}[9d])",
}


@pytest.fixture(scope="module", params=[run_prometheus, run_victoria_metrics])
def store(request):
    """A database with 1000 jobs of alice."""
    lines = [
        f'{INFO}{{cluster="c1",user="alice",instance="n{job % 10}",jobid="{job}",x="{job}"}} '
        f"{job}.5 {T - 60 * minute}"
        for job in range(JOBS)
        for minute in (3, 2, 1)
    ]
    with request.param(lines) as database:
        yield database


def peak_memory_bytes(store):
    """The peak of resident memory of the process (proc(5), VmHWM)."""
    with open(f"/proc/{store.pid}/status") as status:
        words = next(line for line in status if line.startswith("VmHWM:")).split()
    return int(words[1]) << 10


def send_query(store, query):
    """Send a query as the gate does, once for one time and once for a range."""
    tsdb = PromqlBackend(Endpoint(store.url), 1)
    range_query = ("query_range", QueryWindow(T - 200, T, 1.0))

    async def send():
        for path, window in (("query", QueryWindow(T, T)), range_query):
            form = [("timeout", f"{TIMEOUT_SECONDS:.0f}s")]
            times = {"time": window.end} if path == "query" else window._asdict()
            form += [(name, str(value)) for name, value in times.items()]
            with contextlib.suppress(QueryError, Rejected, Unavailable):
                form.append(("query", confine(query, ALICE, window, QueryLimits())[0]))
                await tsdb.ask("alice", path, form, TIMEOUT_SECONDS)
        tsdb.close()

    asyncio.run(send())


def test_hostile_queries_do_not_grow_database_memory(store):
    before = peak_memory_bytes(store)
    for name, query in (AMPLIFYING_QUERIES | SLOW_QUERIES | QUERIES_AT_THE_LIMITS).items():
        send_query(store, query)
        assert peak_memory_bytes(store) - before < MAX_GROWTH_BYTES, name


def test_queries_at_the_limits_are_accepted(store):
    """Otherwise the other test would not cover them."""
    for query in QUERIES_AT_THE_LIMITS.values():
        assert confine(query, ALICE, QueryWindow(T, T), QueryLimits())
