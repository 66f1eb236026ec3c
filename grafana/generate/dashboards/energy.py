"""Energy by consumer, and emissions."""

from batchjob.quantities.energy import ENERGY_JOULES
from grafana.generate.dashboards.parts import CLUSTER, DAYS, IN_CLUSTER, C
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Promql
from grafana.generate.promql import rate_of_jobs


def _power(by: str) -> str:
    return f"sum by ({by}) (rate(batchjob_node_energy_joules_total{{{C}}}[$__rate_interval]))"


def _daily(
    title: str, unit: str, about: str, path: str, *columns: PanelColumn, by: str = "day"
) -> Panel:
    query = ApiQuery(path, columns, (IN_CLUSTER, ("by", by), *DAYS))
    return Panel(title, (query,), unit, about, bars=True)


_DAY = PanelColumn("day", "Day", kind="time")
DASHBOARD = Dashboard(
    "energy",
    "Energy and emissions",
    "Power of the nodes by consumer, and energy and emissions of jobs by day.",
    (
        Panel(
            "Power by consumer",
            (Promql(_power("consumer"), "{{consumer}}"),),
            "watt",
            "System: not used by jobs. Unallocated: idle power of unallocated "
            "resources. For operators.",
            stacked=True,
        ),
        Panel(
            "Power by component",
            (Promql(_power("component"), "{{component}}"),),
            "watt",
            "For operators.",
            stacked=True,
        ),
        Panel(
            "Jobs' power by user",
            (Promql(f"topk(10, sum by (user) ({rate_of_jobs(ENERGY_JOULES, C)}))", "{{user}}"),),
            "watt",
            "The ten users whose jobs used the most power in the last two minutes; only users "
            "you may see.",
            stacked=True,
        ),
        Panel(
            "Emission factors",
            (
                Promql(
                    "max by (provider, zone, scope) "
                    "(batchjob_emission_factor_grams_per_kilowatt_hour)",
                    "{{provider}} {{zone}} {{scope}}",
                ),
            ),
            "none",
            "Grams of CO2e per kilowatt-hour. Providers and scopes are not comparable.",
        ),
        _daily(
            "Energy by day",
            "joule",
            "Measured jobs that you may see.",
            "/usage",
            _DAY,
            PanelColumn("energy_host_joules", "nodes", kind="number"),
            PanelColumn("energy_gpu_joules", "GPUs", kind="number"),
        ),
        Panel(
            "Emissions by day",
            (
                ApiQuery(
                    "/usage/emissions",
                    (_DAY, PanelColumn("provider"), PanelColumn("grams", kind="number")),
                    (IN_CLUSTER, ("by", "day"), *DAYS),
                ),
            ),
            "massg",
            "In CO2e, by provider of the factor; must not be added up.",
            bars=True,
            line_name="${__field.labels.provider}",
        ),
        Panel(
            "Energy by account",
            (
                ApiQuery(
                    "/usage",
                    (
                        PanelColumn("account", "Account"),
                        PanelColumn("cluster", "Cluster"),
                        PanelColumn("energy_host_joules", "Nodes", "joule", "number"),
                        PanelColumn("energy_gpu_joules", "GPUs", "joule", "number"),
                        PanelColumn("cpu_seconds", "CPU time used", "s", "number"),
                    ),
                    (IN_CLUSTER, ("by", "account,cluster"), *DAYS),
                ),
            ),
            kind="table",
            sort_by="Nodes",
        ),
        Panel(
            "Emissions by account",
            (
                ApiQuery(
                    "/usage/emissions",
                    (
                        PanelColumn("account", "Account"),
                        PanelColumn("cluster", "Cluster"),
                        PanelColumn("provider", "Provider"),
                        PanelColumn("grams", "Grams of CO2e", "massg", "number"),
                    ),
                    (IN_CLUSTER, ("by", "account,cluster"), *DAYS),
                ),
            ),
            kind="table",
            sort_by="Grams of CO2e",
        ),
        Panel(
            "Meters in use",
            (
                Promql(
                    f"count by (source, scope, gpus) (batchjob_node_power_source_info{{{C}}})",
                    instant=True,
                ),
            ),
            "none",
            "Number of nodes by meter, what the meter covers, and whether it "
            "includes GPUs. For operators.",
            "table",
            columns=(
                PanelColumn("source", "Meter"),
                PanelColumn("scope", "Covers"),
                PanelColumn("gpus", "GPUs included"),
                PanelColumn("Value", "Nodes"),
            ),
        ),
        Panel(
            "Time without data",
            (
                Promql(
                    "sum by (meter) (increase(batchjob_meter_seconds_without_data_total"
                    f"{{{C}}}[$__rate_interval]))",
                    "{{meter}}",
                ),
            ),
            "s",
            "Time for which energy is unknown and not attributed to any consumer. For operators.",
        ),
    ),
    (CLUSTER,),
    since="now-7d",
)
