"""Simulated measurements of the example site: waves computed from job and time."""

import math
import zlib

import sqlalchemy as sa

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.database import schema
from batchjob_stats_db.timeseries.base import JobWindow, Point, SeriesValue, TimeSeries
from batchjob_stats_db.timeseries.resample import equal_bins as cut_of
from batchjob_stats_server.cluster_readings import ClusterReadings
from batchjob_stats_server.services import Services
from batchjob_stats_server.turns import TimeSeriesPool
from tests.batchjob_stats_server import example_site

J = "batchjob_job_"
GIB = 1 << 30

# Of each metric: its mean on a node (as a function of the job's share there), and how much it
# swings. Parts are values of a label.
NODE = {
    f"{J}cpu_seconds_total": (lambda n: 0.7 * n.cpus, 0.25),
    f"{J}cpus": (lambda n: n.cpus, 0.0),
    f"{J}memory_current_bytes": (lambda n: 0.55 * n.memory_bytes, 0.4),
    f"{J}memory_working_set_bytes": (lambda n: 0.45 * n.memory_bytes, 0.4),
    f"{J}memory_limit_bytes": (lambda n: n.memory_bytes, 0.0),
    f"{J}process_io_read_bytes_total": (lambda _: 40e6, 0.9),
    f"{J}process_io_written_bytes_total": (lambda _: 9e6, 0.9),
    f"{J}threads": (lambda n: 2 * n.cpus, 0.0),
    f"{J}processes": (lambda _: 6, 0.0),
}
GPU = {
    f"{J}gpu_info": (1.0, 0.0),
    f"{J}gpu_utilization_ratio": (0.8, 0.2),
    f"{J}gpu_memory_bytes": (52 * GIB, 0.1),
    "batchjob_gpu_memory_total_bytes": (80 * GIB, 0.0),
    "batchjob_gpu_power_watts": (390.0, 0.25),
}


def _current_node_values(cluster):
    for number in range(1, 41):
        node = f"{cluster[0]}{number:03d}"
        state = "down" if number == 9 else ("mixed", "allocated", "idle")[number % 3]
        amounts = {
            "cpus": 64, "cpus_allocated": (20, 64, 0)[number % 3], "memory_bytes": 256 * GIB,
            "memory_allocated_bytes": (80, 200, 0)[number % 3] * GIB,
        }  # fmt: skip
        if cluster == "beta-gpu":
            amounts |= {"gpus": 8, "gpus_allocated": (3, 8, 0)[number % 3]}
        base = "batchjob_cluster_node_"
        yield SeriesValue(f"{base}info", {"node": node, "state": state}, 1.0)
        for name, amount in amounts.items():
            yield SeriesValue(base + name, {"node": node}, float(amount))
        if number == 7:
            yield SeriesValue(f"{base}flag", {"node": node, "flag": "drain"}, 1.0)
            reason = {"node": node, "reason": "bad DIMM"}
            yield SeriesValue(f"{base}unavailable_info", reason, 1.0)
        if number != 9:
            yield SeriesValue("batchjob_node_cpus", {"instance": f"{node}:10910"}, 64.0)


def _current_gpu_values(cluster, instance):
    for gpu in range(8 if cluster == "beta-gpu" else 0):
        labels = {"gpu": str(gpu), "uuid": f"GPU-{gpu}", "gpu_instance": "", "instance": instance}
        busy = 0.0 if gpu == 3 else 0.9
        now = {
            "utilization_ratio": busy, "memory_used_bytes": 40 * GIB,
            "memory_total_bytes": 80 * GIB, "power_watts": 310, "temperature_celsius": 61,
        }  # fmt: skip
        for name, value in now.items():
            yield SeriesValue(f"batchjob_gpu_{name}", labels, float(value))
        if gpu < 6:
            held = {**labels, "jobid": "40012", "confirmed": "true"}
            yield SeriesValue("batchjob_job_gpu_info", held, 1.0)


class ExampleHistory:
    """A time series store for the example site; the second node of a job does little."""

    source = "prometheus"

    def __init__(self, engine):
        self._engine = engine

    def job_series(self, asked, span, stretches):
        cut = cut_of(span, stretches, 30)
        with self._engine.connect() as db:
            job, nodes, gpus = self._job(db, span)
        if job is None or job["id"] % 23 == 2:  # of some there is nothing
            return []
        if asked.metric in NODE:
            mean, swing = NODE[asked.metric]
            return [
                self._wave_series(cut, {"instance": f"{n.node}:10910", "user": job["username"]},
                             mean(n) * (0.12 if place == 1 else 1.0) if swing else mean(n), swing)
                for place, n in enumerate(nodes)
            ]  # fmt: skip
        if asked.metric == f"{J}energy_joules_total":
            return [
                self._wave_series(cut, {"instance": f"{n.node}:10910", "user": job["username"],
                                   "component": "host"}, 5.0 * n.cpus, 0.2)
                for n in nodes
            ]  # fmt: skip
        if asked.metric == f"{J}pressure_waiting_seconds_total":
            part = asked.where["resource"][0]
            return [
                self._wave_series(cut, {"instance": f"{n.node}:10910", "user": job["username"]},
                             {"cpu": 0.05, "memory": 0.001, "io": 0.2}[part], 0.8)
                for n in nodes[:1]
            ]  # fmt: skip
        if asked.metric in GPU:
            mean, swing = GPU[asked.metric]
            return [
                self._wave_series(
                    cut,
                    {"instance": f"{g.node}:10910", "user": job["username"], "gpu": g.gpu,
                     "uuid": g.uuid, "gpu_instance": ""},
                    mean * (0.02 if g.utilization_ratio == 0 and swing else 1.0), swing,
                )
                for g in gpus
            ]  # fmt: skip
        return []

    def measure(self, asked, spans):
        kinds = {
            f"{J}cpu_seconds_total": Statistic.TOTAL,
            f"{J}memory_peak_bytes": Statistic.PEAK,
        }
        found = {statistic: [] for statistic in asked}
        for span in spans:
            with self._engine.connect() as db:
                job, nodes, _ = self._job(db, span)
            if job is None or job["end_time"] is None or len(nodes) < 2:
                continue
            seconds = job["end_time"] - job["start_time"]
            for place, n in enumerate(nodes):
                labels = {"instance": f"{n.node}:10910", "user": job["username"],
                          "jobid": job["jobid"]}  # fmt: skip
                part = 0.12 if place == 1 else 1.0 - 0.01 * place
                values = {
                    f"{J}cpu_seconds_total": 0.7 * n.cpus * seconds * part,
                    f"{J}memory_peak_bytes": 0.6 * n.memory_bytes * part,
                }
                for statistic, metrics in asked.items():
                    found[statistic] += [
                        SeriesValue(metric, labels, values[metric])
                        for metric in metrics
                        if kinds.get(metric) is statistic
                    ]
        return found

    def latest(self, cluster, metrics, now, instance=""):
        """40 nodes: one is drained, one down, one reports nothing; 8 GPUs on each of beta-gpu."""
        if instance:
            return list(_current_gpu_values(cluster, instance))
        found = list(_current_node_values(cluster))
        for account, level in (("physics", 1.8), ("chemistry", 0.4), ("climate", 1.0)):
            shares = {"shares_ratio": 0.5, "usage_ratio": 0.5 / level, "fairshare_level": level}
            found += [
                SeriesValue(f"batchjob_cluster_account_{name}", {"account": account}, value)
                for name, value in shares.items()
            ]
        return [each for each in found if each.metric in metrics]

    def scrape_ratios(self, cluster, metric, now, seconds):
        return [
            SeriesValue(metric, {"instance": f"{cluster[0]}{number:03d}:10910"},
                        0.6 if number == 5 else 1.0)
            for number in range(1, 41)
            if number != 9
        ]  # fmt: skip

    def node_series(self, asked, cluster, instance, since, until, points):
        span = JobWindow(cluster, "", since, until)
        cut = cut_of(span, points, 30)
        means = {
            "batchjob_node_cpu_seconds_total": (20, 0.3), "batchjob_node_cpus": (64, 0),
            "batchjob_node_memory_total_bytes": (256 * GIB, 0),
            "batchjob_node_memory_available_bytes": (90 * GIB, 0.2),
            "batchjob_node_energy_joules_total": (380, 0.2),
            "batchjob_gpu_utilization_ratio": (0.7, 0.3),
            "batchjob_gpu_memory_used_bytes": (40 * GIB, 0.2),
            "batchjob_gpu_memory_total_bytes": (80 * GIB, 0),
            "batchjob_gpu_power_watts": (300, 0.2), "batchjob_gpu_temperature_celsius": (60, 0.1),
        }  # fmt: skip
        mean, swing = means[asked.metric]
        if "gpu" in asked.by:
            labels = [{"gpu": str(gpu), "uuid": f"GPU-{gpu}", "gpu_instance": ""}
                      for gpu in range(8)] if cluster == "beta-gpu" else []  # fmt: skip
        else:
            labels = [{"component": "host"}] if "component" in asked.by else [{}]
        return [self._wave_series(cut, each, mean, swing) for each in labels]

    def _job(self, db, span):
        job, node, gpu = schema.job, schema.job_node, schema.job_gpu
        row = db.execute(
            sa.select(job).where(job.c.cluster == span.cluster, job.c.jobid == span.jobid)
        ).mappings().first()  # fmt: skip
        if row is None:
            return None, [], []
        nodes = db.execute(sa.select(node).where(node.c.job_id == row["id"])).all()
        gpus = db.execute(sa.select(gpu).where(gpu.c.job_id == row["id"])).all()
        return row, nodes, gpus

    def _wave_series(self, cut, labels, mean, swing):
        phase = zlib.crc32(repr(sorted(labels.items())).encode()) % 628 / 100
        points = []
        for number in range(cut.bin_count):
            x = number / cut.bin_count
            wave = math.sin(6 * x + phase) * 0.6 + math.sin(31 * x + 2 * phase) * 0.4
            middle = mean * (1 + swing * wave) * (min(1.0, 0.15 + 8 * x) if swing else 1.0)
            width = mean * swing * 0.25
            points.append(
                Point(cut.end_of(number), max(0, middle - width), max(0, middle), middle + width)
            )
        return TimeSeries(labels, points)


def with_example_history(services: Services, seconds: float = 60.0) -> Services:
    """Services of the example site with these measurements; pages wait `seconds` for them."""
    services.threads.store_seconds = seconds
    stores = TimeSeriesPool([ExampleHistory(services.reader) for _ in range(4)])
    return services._replace(
        stores=stores,
        readings=ClusterReadings(stores, services.threads),
        clock=lambda: example_site.NOW,
    )
