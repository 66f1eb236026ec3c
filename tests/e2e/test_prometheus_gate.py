"""Results of the PromQL gate from real databases with series of several users.

Two databases of each kind: one with the series of all users, one with those of alice only. Every
query of alice must have the same result from both: then no series of others contributed to it.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_server.promql.backend import PromqlBackend, Rejected
from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.query_limits import QueryError, QueryLimits, QueryWindow
from batchjob_stats_server.promql.rewrite import confine, confine_selector
from tests.batchjob_stats_db.tsdb import prometheus, victoria_metrics
from tests.batchjob_stats_server.promql.expressions import EXPRESSIONS, METRICS

pytestmark = pytest.mark.e2e

NOW = 1_700_000_400
ALICE_ACCESS = Access((ClusterLogin("c1", "alice"),))
# Labels of other series: another user, the same name on another cluster, no user.
OTHER_OWNERS = (
    {"cluster": "c1", "user": "bob"},
    {"cluster": "c2", "user": "alice"},
    {"cluster": "c2", "user": "bob"},
    {"cluster": "c1"},
    {"user": "alice"},
    {},
)
EMISSION_FACTOR = "batchjob_emission_factor_grams_per_kilowatt_hour"


def exposition_lines(owner, secret_label, offset):
    """Samples of a job of this owner, every two minutes for two hours."""
    for number, metric in enumerate(METRICS):
        for instance in ("n1", "n2"):
            labels = {
                **owner,
                "instance": instance,
                "jobid": "1",
                "mode": "user",
                "secret": secret_label,
            }
            label_text = ",".join(f'{name}="{value}"' for name, value in labels.items())
            for minute in range(0, 120, 2):
                value = offset + minute * (number + 1) + int(instance[1:])
                yield f"{metric}{{{label_text}}} {value} {NOW - 7200 + 60 * minute}"


ALICE_SERIES = [
    *exposition_lines({"cluster": "c1", "user": "alice"}, "own", 1000),
    f'{EMISSION_FACTOR}{{zone="FR"}} 56 {NOW - 60}',
]
ALL_SERIES = [
    *ALICE_SERIES,
    *(
        line
        for number, owner in enumerate(OTHER_OWNERS)
        for line in exposition_lines(owner, f"hidden{number}", 100_000 * (number + 1))
    ),
]


class Stores(NamedTuple):
    """Query the series of all users, and those of alice only."""

    all_users: Callable[[str, list[tuple[str, str]]], bytes]
    alice_only: Callable[[str, list[tuple[str, str]]], bytes]
    is_victoria: bool


@pytest.fixture(scope="module", params=[prometheus, victoria_metrics])
def stores(request):
    """Both backends for each kind of database."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(request.param(lines)) for lines in (ALL_SERIES, ALICE_SERIES)]
        runner = stack.enter_context(asyncio.Runner())
        backends = [PromqlBackend(Endpoint(url), 1) for url in urls]
        for each in backends:
            stack.callback(each.close)

        def query(backend, endpoint, parameters):
            return runner.run(backend.ask("alice", endpoint, parameters, 10.0))

        yield Stores(
            *(partial(query, each) for each in backends),
            is_victoria=request.param is victoria_metrics,
        )


def query_result(query, endpoint, parameters):
    """The result, sorted and with rounded values; or the error's status and kind."""
    try:
        body = query(endpoint, parameters)
    except Rejected as error:
        return f"{error.status} {error.kind}"
    result = json.loads(body)["data"]
    if isinstance(result, dict):
        result = result["result"]
    rows = result if isinstance(result, list) else [result]
    return sorted(json.dumps(_rounded(row), sort_keys=True) for row in rows)


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    with contextlib.suppress(ValueError, TypeError):
        return f"{float(value):.9g}"
    return value


def confined_query(query, window):
    return confine(query, Confinement.of(ALICE_ACCESS, ()), window, QueryLimits())[0]


def assert_only_own_series_used(stores, query, endpoint, parameters):
    all_users, alice_only = (query_result(store, endpoint, parameters) for store in stores[:2])
    assert "hidden" not in str(all_users)
    # topk() picks any of equal values, and so does VictoriaMetrics' `or` of series that differ in
    # their names only.
    if "topk" not in query and not (stores.is_victoria and " or " in query):
        assert all_users == alice_only


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(EXPRESSIONS, st.booleans())
def test_random_queries_use_own_series_only(stores, query, is_range_query):
    # Two steps only: with more, VictoriaMetrics merges series that share at most two points where
    # one side must be unique, and which value it takes there is random.
    window = QueryWindow(NOW - 300, NOW) if is_range_query else QueryWindow(NOW, NOW)
    try:
        text = confined_query(query, window)
    except QueryError:
        return
    if is_range_query:
        parameters = [
            ("query", text),
            ("start", str(NOW - 300)),
            ("end", str(NOW)),
            ("step", "300"),
        ]
        assert_only_own_series_used(stores, query, "query_range", parameters)
    else:
        assert_only_own_series_used(stores, query, "query", [("query", text), ("time", str(NOW))])


ATTACK_QUERIES = [
    'batchjob_job_info{user="bob"}',
    'batchjob_job_info{user=~".*",cluster=~".*"}',
    'batchjob_job_info{user!="alice"}',
    'batchjob_job_info{user=""}',
    '{__name__=~".+"}',
    f'{{__name__=~"{EMISSION_FACTOR}|batchjob_job_.*"}}',
    'batchjob_job_info{mode="\\"} or batchjob_job_info{user=\\"bob"}',
    "batchjob_job_info{mode='\"} or batchjob_job_info{mode=\"user'}",
    "up # {}\n or up",
    "up or on () batchjob_job_info or vector(1)",
    "max_over_time((batchjob_job_processes)[1h:1m] @ end() offset -10m)",
    f"batchjob_job_processes @ {NOW} offset 10m",
    'count by (user, secret) ({__name__=~"batchjob_.*"})',
    "sum without (user, cluster) (batchjob_job_processes)",
    "batchjob_job_processes * on () group_left () topk(1, batchjob_job_info)",
    "batchjob_job_processes * on (instance, jobid) group_left (secret, user) batchjob_job_info",
    "batchjob_job_info unless on (user) batchjob_job_processes",
    'label_replace(batchjob_job_info, "user", "bob", "", "")',
    'label_join(batchjob_job_info, "user", "}", "secret", "user")',
    'absent(batchjob_job_info{user="bob"})',
    'absent_over_time(batchjob_job_info{user="bob"}[1h])',
    'count_values("user", batchjob_job_processes)',
    "scalar(sum(batchjob_job_processes)) > bool 0",
    "by", "sum", "offset", "with",
]  # fmt: skip


@pytest.mark.parametrize("query", ATTACK_QUERIES)
def test_attack_queries_use_own_series_only(stores, query):
    text = confined_query(query, QueryWindow(NOW, NOW))
    assert_only_own_series_used(stores, query, "query", [("query", text), ("time", str(NOW))])


def test_own_and_public_series_are_returned(stores):
    smoothed = [
        f"{name}(batchjob_job_processes[10m], 0.5, 0.5)"
        for name in ("holt_winters", "double_exponential_smoothing")
    ]
    for query, count in (
        ("batchjob_job_info", 2),
        (r"batchjob_job_info{instance=~`n\d`}", 2),
        (EMISSION_FACTOR, 1),
        ('{__name__=~".+"}', 8),
        *((query, 2) for query in smoothed),
    ):
        text = confined_query(query, QueryWindow(NOW, NOW))
        assert len(query_result(stores[0], "query", [("query", text), ("time", str(NOW))])) == count
    unconfined = query_result(
        stores[0], "query", [("query", "batchjob_job_info"), ("time", str(NOW))]
    )
    assert "hidden" in str(unconfined)


@pytest.mark.parametrize(
    "endpoint",
    ["series", "labels", "label/user/values", "label/secret/values", "label/zone/values"],
)
@pytest.mark.parametrize(
    "selector", [None, "up", '{user="bob"}', '{secret=~".+"}', '{__name__=~".+",cluster="c2"}']
)
def test_label_names_and_values_are_confined(stores, endpoint, selector):
    confinement = Confinement.of(ALICE_ACCESS, ())
    selectors = confinement.selectors()
    if selector is not None:
        selectors = confine_selector(selector, confinement, QueryLimits())
    parameters = [("match[]", each) for each in selectors]
    assert_only_own_series_used(
        stores, "", endpoint, [*parameters, ("start", str(NOW - 3600)), ("end", str(NOW))]
    )
