"""What users get through the PromQL gate from real databases that hold the series of several.

Two databases of each kind: one with everybody's series, one with alice's alone. Whatever alice asks
through the gate, both must answer the same: then nothing of others' has had any part in it.
"""

import contextlib
import json
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

T = 1_700_000_400
MINE = Access((ClusterLogin("c1", "alice"),))
# Labels of the others' series: another user, a namesake on another cluster, nobody.
OTHERS = (
    {"cluster": "c1", "user": "bob"},
    {"cluster": "c2", "user": "alice"},
    {"cluster": "c2", "user": "bob"},
    {"cluster": "c1"},
    {"user": "alice"},
    {},
)
FACTOR = "batchjob_emission_factor_grams_per_kilowatt_hour"


def series(owner, secret, offset):
    """Samples of a job of somebody's, each minute of two hours."""
    for number, metric in enumerate(METRICS):
        for instance in ("n1", "n2"):
            labels = {**owner, "instance": instance, "jobid": "1", "mode": "user", "secret": secret}
            text = ",".join(f'{name}="{value}"' for name, value in labels.items())
            for minute in range(0, 120, 2):
                value = offset + minute * (number + 1) + int(instance[1:])
                yield f"{metric}{{{text}}} {value} {T - 7200 + 60 * minute}"


OWN = [
    *series({"cluster": "c1", "user": "alice"}, "own", 1000),
    f'{FACTOR}{{zone="FR"}} 56 {T - 60}',
]
ALL = [
    *OWN,
    *(
        line
        for number, owner in enumerate(OTHERS)
        for line in series(owner, f"hidden{number}", 100_000 * (number + 1))
    ),
]


class Stores(NamedTuple):
    """With everybody's series, and with alice's alone."""

    everybodys: PromqlBackend
    own: PromqlBackend
    is_victoria: bool


@pytest.fixture(scope="module", params=[prometheus, victoria_metrics])
def stores(request):
    """The one with all series, and the one with alice's."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(request.param(lines)) for lines in (ALL, OWN)]
        made = [PromqlBackend(Endpoint(url), 1) for url in urls]
        for each in made:
            stack.callback(each.close)
        yield Stores(*made, is_victoria=request.param is victoria_metrics)


def answer(store, what, form):
    """Its result, in an order of ours and without the last digits; or why there is none."""
    try:
        body = store.ask(what, form, 10.0)
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


def confined(query, window):
    return confine(query, Confinement.of(MINE, ()), window, QueryLimits())


def check(stores, query, what, form):
    everybodys, own = (answer(store, what, form) for store in stores[:2])
    assert "hidden" not in str(everybodys)
    # Among equal values, topk() takes any; so does VictoriaMetrics' `or` among series that differ
    # in their names alone.
    if "topk" not in query and not (stores.is_victoria and " or " in query):
        assert everybodys == own


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(EXPRESSIONS, st.booleans())
def test_others_series_have_no_part_in_any_answer(stores, query, over_time):
    # Two steps: of three or more, VictoriaMetrics merges series that match where one must and that
    # share at most two points, and which of them it takes there is left to chance.
    window = QueryWindow(T - 300, T) if over_time else QueryWindow(T, T)
    try:
        text = confined(query, window)
    except QueryError:
        return
    if over_time:
        form = [("query", text), ("start", str(T - 300)), ("end", str(T)), ("step", "300")]
        check(stores, query, "query_range", form)
    else:
        check(stores, query, "query", [("query", text), ("time", str(T))])


ATTACKS = [
    'batchjob_job_info{user="bob"}',
    'batchjob_job_info{user=~".*",cluster=~".*"}',
    'batchjob_job_info{user!="alice"}',
    'batchjob_job_info{user=""}',
    '{__name__=~".+"}',
    f'{{__name__=~"{FACTOR}|batchjob_job_.*"}}',
    'batchjob_job_info{mode="\\"} or batchjob_job_info{user=\\"bob"}',
    "batchjob_job_info{mode='\"} or batchjob_job_info{mode=\"user'}",
    "up # {}\n or up",
    "up or on () batchjob_job_info or vector(1)",
    "max_over_time((batchjob_job_processes)[1h:1m] @ end() offset -10m)",
    f"batchjob_job_processes @ {T} offset 10m",
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


@pytest.mark.parametrize("query", ATTACKS)
def test_attacks_give_what_is_ones_own(stores, query):
    text = confined(query, QueryWindow(T, T))
    check(stores, query, "query", [("query", text), ("time", str(T))])


def test_ones_own_series_and_the_public_ones_are_there(stores):
    for query, count in (("batchjob_job_info", 2), (FACTOR, 1), ('{__name__=~".+"}', 8)):
        text = confined(query, QueryWindow(T, T))
        assert len(answer(stores[0], "query", [("query", text), ("time", str(T))])) == count
    unconfined = answer(stores[0], "query", [("query", "batchjob_job_info"), ("time", str(T))])
    assert "hidden" in str(unconfined)


@pytest.mark.parametrize(
    "what", ["series", "labels", "label/user/values", "label/secret/values", "label/zone/values"]
)
@pytest.mark.parametrize(
    "match", [None, "up", '{user="bob"}', '{secret=~".+"}', '{__name__=~".+",cluster="c2"}']
)
def test_names_and_values_of_labels(stores, what, match):
    window = QueryWindow(T - 3600, T)
    own = Confinement.of(MINE, ())
    selectors = own.selectors(window)
    if match is not None:
        selectors = confine_selector(match, own, window, QueryLimits())
    form = [("match[]", each) for each in selectors]
    check(stores, "", what, [*form, ("start", str(T - 3600)), ("end", str(T))])
