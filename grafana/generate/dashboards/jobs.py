"""Lists of jobs: one's own, and all that one may see."""

from batchjob.judgements import RUNNING_STATES
from batchjob.schedulers.states import JobState
from grafana.generate.dashboards.parts import (
    ASKED_FOR,
    CLUSTER,
    CLUSTER_OF,
    IN_CLUSTER,
    JOB,
    NAME,
    STARTED,
    STATE,
    USED,
    USER_OF,
    WINDOW,
)
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Variable

_Params = tuple[tuple[str, str], ...]

_SUBMITTED = PanelColumn("submit_time", "Submitted", kind="time")
_REASON = PanelColumn("reason", "Reason")
_STATES = Variable(
    "state",
    "State",
    words=tuple(state.value for state in JobState if state is not JobState.PENDING),
    every=True,
    several=True,
)


def _tables(whose: _Params, who: tuple[PanelColumn, ...]) -> tuple[Panel, ...]:
    head = (JOB, CLUSTER_OF, *who, NAME)
    return (
        Panel(
            "Running",
            (
                ApiQuery(
                    "/jobs",
                    (*head, STARTED, *ASKED_FOR, *WINDOW),
                    (*whose, ("state", ",".join(RUNNING_STATES)), ("limit", "500")),
                ),
            ),
            about="Running jobs, newest first. The job id links to the dashboard of the job.",
            kind="table",
            width=24,
            height=9,
        ),
        Panel(
            "Waiting",
            (
                ApiQuery(
                    "/jobs",
                    (*head, _SUBMITTED, _REASON, *ASKED_FOR, *WINDOW),
                    (*whose, ("state", "PENDING"), ("started", "false"), ("limit", "500")),
                ),
            ),
            about="Pending jobs, and the reasons why they wait.",
            kind="table",
            width=24,
            height=7,
        ),
        Panel(
            "Started in this period",
            (
                ApiQuery(
                    "/jobs",
                    (*head, STATE, STARTED, *USED, *ASKED_FOR, *WINDOW),
                    (
                        *whose,
                        ("state", "${state:csv}"),
                        ("started_from", "${__from}"),
                        ("started_before", "${__to}"),
                        ("limit", "1000"),
                    ),
                ),
            ),
            about="At most a thousand, newest first. Use is relative to the allocation. "
            "Measurements are empty until a few minutes after the end of the job; a caveat "
            "explains why a number may be too low.",
            kind="table",
            width=24,
            height=14,
        ),
    )


_MINE = Dashboard(
    "my-jobs",
    "My jobs",
    "Your running and pending jobs, and the usage of the others.",
    _tables((("user", "${__user.login}"), IN_CLUSTER), ()),
    (CLUSTER, _STATES),
    since="now-7d",
    refresh="1m",
)

_ANYBODYS: _Params = (
    IN_CLUSTER,
    ("user", "${user}"),
    ("account", "${account}"),
    ("partition", "${partition}"),
    ("node", "${node}"),
)
ALL = Dashboard(
    "jobs",
    "Jobs",
    "All jobs that you may see: coordinators see those of their accounts, operators see all.",
    _tables(_ANYBODYS, (USER_OF,)),
    (
        CLUSTER,
        _STATES,
        Variable("user", "User"),
        Variable("account", "Account"),
        Variable("partition", "Partition"),
        Variable("node", "Node"),
    ),
    since="now-24h",
    refresh="1m",
)

DASHBOARDS = (_MINE, ALL)
