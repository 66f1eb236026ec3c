"""Usage by users and accounts, from the daily sums."""

from grafana.generate.dashboards.parts import CLUSTER, DAYS, IN_CLUSTER
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Variable

_Params = tuple[tuple[str, str], ...]

_DAY = PanelColumn("day", "Day", kind="time")
_WHO = {"account": PanelColumn("account", "Account"), "user": PanelColumn("user", "User")}
_SUMS = (
    PanelColumn("jobs_started", "Jobs started", "none", "number"),
    PanelColumn("jobs_failed", "Failed", "none", "number"),
    PanelColumn("cpu_allocated_seconds", "CPU time allocated", "s", "number"),
    PanelColumn("measured_cpu_allocated_seconds", "of which measured", "s", "number"),
    PanelColumn("cpu_seconds", "CPU time used", "s", "number"),
    PanelColumn("gpu_allocated_seconds", "GPU time allocated", "s", "number"),
    PanelColumn("gpu_seconds", "GPU time used", "s", "number"),
    PanelColumn("wait_seconds", "Waiting time", "s", "number"),
    PanelColumn("energy_host_joules", "Energy of nodes", "joule", "number"),
    PanelColumn("energy_gpu_joules", "Energy of GPUs", "joule", "number"),
    PanelColumn("measured_energy_cpu_allocated_seconds", "of CPU time", "s", "number"),
)


def _days(title: str, unit: str, about: str, whose: _Params, *columns: PanelColumn) -> Panel:
    query = ApiQuery("/usage", (_DAY, *columns), (*whose, ("by", "day"), *DAYS))
    return Panel(title, (query,), unit, about, bars=True)


def _number(key: str, title: str) -> PanelColumn:
    return PanelColumn(key, title, kind="number")


def _panels(whose: _Params, by: str) -> tuple[Panel, ...]:
    return (
        _days(
            "CPU time by day",
            "s",
            "Allocated to jobs; and used, as far as it was measured.",
            whose,
            _number("cpu_allocated_seconds", "held"),
            _number("cpu_seconds", "used"),
        ),
        _days(
            "GPU time by day",
            "s",
            "Allocated to jobs, and the part of it in which kernels ran.",
            whose,
            _number("gpu_allocated_seconds", "held"),
            _number("gpu_seconds", "used"),
        ),
        _days(
            "Energy by day",
            "joule",
            "Of jobs whose energy is known, including their share of idle power.",
            whose,
            _number("energy_host_joules", "nodes"),
            _number("energy_gpu_joules", "GPUs"),
        ),
        Panel(
            "Emissions",
            (
                ApiQuery(
                    "/usage/emissions",
                    (
                        PanelColumn("provider", "Provider"),
                        PanelColumn("grams", "Grams of CO2e", "massg", "number"),
                    ),
                    (*whose, ("by", "cluster"), *DAYS),
                ),
            ),
            about="By provider of the emission factor; those of different providers "
            "must not be added up.",
            kind="table",
        ),
        Panel(
            f"By {by}",
            (
                ApiQuery(
                    "/usage",
                    (_WHO[by], PanelColumn("cluster", "Cluster"), *_SUMS),
                    (*whose, ("by", f"{by},cluster"), *DAYS),
                ),
            ),
            about="Compare the CPU time used with the time allocated to measured jobs.",
            kind="table",
            width=24,
            height=10,
            sort_by="CPU time allocated",
        ),
    )


_MINE = Dashboard(
    "my-usage",
    "My usage",
    "Resources, energy and emissions of your jobs, by day (UTC).",
    _panels((("user", "${__user.login}"), IN_CLUSTER), "account"),
    (CLUSTER,),
    since="now-30d",
)
ACCOUNT = Dashboard(
    "account-usage",
    "Account usage",
    "Resources, energy and emissions of an account's jobs, by day (UTC) and by member. "
    "Without an account: all jobs that you may see.",
    _panels((("account", "${account}"), IN_CLUSTER), "user"),
    (
        CLUSTER,
        Variable(
            "account",
            "Account",
            ApiQuery("/accounts", (PanelColumn("account"),), (*DAYS, IN_CLUSTER)),
            every=True,
        ),
    ),
    since="now-30d",
)

DASHBOARDS = (_MINE, ACCOUNT)
