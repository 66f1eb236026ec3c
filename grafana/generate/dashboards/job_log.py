"""What the nodes of a job wrote to the log, for operators: lines of a node have no user."""

from grafana.generate.dashboards.parts import EMPTY
from grafana.generate.model import PAGES, Dashboard, LogQuery, Panel, Variable
from grafana.generate.plugins import LOKI, VICTORIALOGS

_NODES = '{cluster="${cluster}",host=~"${node:pipe}"}'


def _dashboard(slug: str, title: str, store: str) -> Dashboard:
    return Dashboard(
        slug,
        f"Log of a job's nodes ({title})",
        "Lines of the nodes of a job in the selected time: of the scheduler, the system and "
        "batchjob. For operators: whoever may query the log database sees lines of all jobs.",
        (
            Panel(
                "Log of this job's nodes",
                (LogQuery(_NODES, store),),
                about="Lines that the node's log shipper sent (docs/logs.md), the oldest first.",
                kind="logs",
                width=24,
                height=24,
            ),
        ),
        (
            Variable(
                "cluster", "Cluster", "label_values(batchjob_node_cpus, cluster)", about=EMPTY
            ),
            Variable("job", "Job"),
            Variable(
                "node",
                "Nodes",
                'label_values(batchjob_job_info{cluster="$cluster",jobid="$job"}, instance)',
                every=True,
                several=True,
                all_value=None,
                about=EMPTY,
            ),
        ),
        since="now-1h",
        links=(
            (
                "Page of this job",
                f"{PAGES}/jobs/${{job:percentencode}}?cluster=${{cluster:percentencode}}",
            ),
        ),
        folder="logs",
    )


DASHBOARDS = (
    _dashboard("job-log", "Loki", LOKI),
    _dashboard("job-log-victorialogs", "VictoriaLogs", VICTORIALOGS),
)
