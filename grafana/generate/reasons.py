"""Reasons for empty panels, which Grafana shows instead of “No data”."""

import re

from grafana.generate.model import LogQuery, Panel, Promql, Query

_OPERATORS = "you are not an operator (viewer or admin), or"
_GROUP = "the exporter does not expose the group"

# What a query contains, and why its answer may be empty; the first match counts.
_REASONS = (
    ("/comparisons", "no similar job of the user completed before this one"),
    ("/report/logs", "the server has no address of a log database (logs.url), or the job no node"),
    ("host=~", "the job has no node in this time, or no line of its nodes is in the database"),
    ("/report", "this job has nothing of this kind to report, or you may not see it"),
    ("/emissions", "emission factors are not configured, or no energy was measured"),
    ("/stats/idle-gpus", "no running job that you may see has had an unused GPU for half an hour"),
    ("/stats/waste", "no job that you may see was measured in this period"),
    ("/stats/", "no job that you may see is in this period and selection"),
    ("/gpus", "the job had no GPU that was measured"),
    ("/steps", "the scheduler has recorded no steps of this job"),
    ("/nodes", "the job has not started, or you may not see it"),
    ("/clusters", "no source of job records is configured, or you have no login on a cluster"),
    ("/usage", "no job that you may see ran in this period"),
    ("gpu_throttle", _OPERATORS + " no node has an NVIDIA GPU that the exporter reads"),
    ("throttled", "the job has no CPU quota, or " + _GROUP + " `throttling`"),
    ("pressure", "pressure is available only on cgroup v2 (group `pressure`)"),
    ("stalled", "pressure is available only on cgroup v2 (group `pressure`)"),
    ("network_", "the job has no network namespace of its own, or " + _GROUP + " `network`"),
    ("process_io", "the exporter lacks CAP_SYS_PTRACE, or " + _GROUP + " `process-io`"),
    ("file_read", "the exporter lacks CAP_SYS_PTRACE, or " + _GROUP + " `process-io`"),
    ("job_io_", "cgroup v1 counts block devices only where IO is throttled (group `io`)"),
    ("io_read", "cgroup v1 counts block devices only where IO is throttled (group `io`)"),
    ("open_files", _GROUP + " `open-files`, or lacks CAP_SYS_PTRACE"),
    ("page_faults", _GROUP + " `faults`, which is on by default"),
    ("major_faults", _GROUP + " `faults`, and no swap was in use"),
    ("limit_hits", _GROUP + " `memory-detail`, or the job has no memory limit"),
    ("job_memory_anon", _GROUP + " `memory-detail`, or the job has no memory limit"),
    ("job_gpu", "no job that you may see has a GPU for which the exporter can read this"),
    ("gpu_map", _OPERATORS + " no contradictions were found"),
    ("gpu_ecc", _OPERATORS + " no GPU has an error"),
    (
        "batchjob_gpu_",
        _OPERATORS + (" no GPU driver responds here: run `batchjob doctor` to find out why"),
    ),
    ("gpu_", "the job had no GPU, or the GPU driver does not respond on its nodes"),
    ("emissions_grams", "emission factors are not configured, or no energy was measured"),
    ("emission_factor", "no exporter has the collector `emissions` with a provider"),
    ("job_energy", "no energy meter is read on the nodes: `batchjob doctor` lists those available"),
    ('"power"', "no energy meter is read on the nodes: `batchjob doctor` lists those available"),
    ("energy", _OPERATORS + " no energy meter is read: `batchjob doctor` lists those available"),
    ("meter", _OPERATORS + " no energy meter is read: `batchjob doctor` lists those available"),
    ("power", _OPERATORS + " no energy meter is read: `batchjob doctor` lists those available"),
    ("unavailable_info", _OPERATORS + " all nodes take jobs"),
    ("licenses", _OPERATORS + " the scheduler has no licences"),
    ("job_wait", _OPERATORS + " no job started in the hour before"),
    ("batchjob_cluster", _OPERATORS + " no exporter has the collector `cluster` enabled"),
    ("read_errors", _OPERATORS + " all files could be read"),
    ("== 0", _OPERATORS + " nothing is down or fails"),
    ("stats_db_measured_job", _OPERATORS + " no job was measured in this period"),
    ("stats_db_ended_jobs", _OPERATORS + " no job ended in the hour before"),
    ("stats_db", _OPERATORS + " Prometheus must scrape batchjob_stats_db"),
    ("stats_server", _OPERATORS + " Prometheus must scrape batchjob_stats_server"),
    ("batchjob_job_", "no job that you may see ran here in this period, or it was not scraped"),
    ("batchjob_", _OPERATORS + " Prometheus must scrape this exporter"),
    ("/metrics", "nothing was measured of this job in this period, or you may not see it"),
    ("/job", "no job that you may see is in this period and selection"),
    ("", _OPERATORS + " Prometheus must scrape the exporters"),
)

# Prefixes of other exporters' metrics, and why these may be missing.
_OTHERS = (
    ("kube_pod", "kube-state-metrics is not scraped"),
    ("container", "cAdvisor in the kubelets is not scraped, or nothing of this kind runs"),
    ("prober", "the kubelets' probe metrics are not scraped, or no probe failed"),
    ("kubelet", "the kubelets are not scraped, or there is nothing of this kind"),
    ("node", "node_exporter is not scraped, or the kernel does not provide it"),
    ("grafana", "Grafana is not scraped, or received no requests"),
    ("vmagent", "no vmagent is scraped"),
    ("vm", "VictoriaMetrics is not scraped"),
)


def reason(panel: Panel) -> str:
    """A sentence for the panel's field `noValue`."""
    texts = " ".join(map(_text, panel.queries))
    for begin, why in _OTHERS:
        if re.search(rf"\b{begin}_", texts):
            return f"No data: {_OPERATORS} {why}."
    why = next(why for part, why in _REASONS if part in texts)
    return f"No data: {why}."


def _text(query: Query) -> str:
    if isinstance(query, Promql | LogQuery):
        return query.expr
    # Quoted, since the name of one curve may be part of another's.
    return " ".join((query.path, *(f'"{value}"' for _, value in query.params)))
