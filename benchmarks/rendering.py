"""What it costs to write families down: ours, and prometheus-client's way.

    python -m benchmarks.rendering exposition.txt

Both start from the same numbers. Ours has its label text already, as the jobs collector keeps it
with a job. The families of prometheus-client are created for each scrape, as its custom collectors
do, and in another row kept, so that only writing is measured. Prints milliseconds of CPU per
exposition.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from batchjob_exporter.exposition import render
from collectors.metric import Metric as OurMetric
from collectors.metric import MetricFamily, labels

SECONDS = 2.0


def cpu_milliseconds(action: Callable[[], object]) -> float:
    """CPU time of one call, averaged over a while."""
    action()
    rounds, start = 0, time.process_time()
    while (used := time.process_time() - start) < SECONDS:
        action()
        rounds += 1
    return 1e3 * used / rounds


class Renewed(Collector):
    """A custom collector as prometheus-client's documentation shows it."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        """Make each family and add each sample."""
        for known in self.families:
            made = Metric(known.name, known.documentation, known.type)
            for sample in known.samples:
                made.add_sample(sample.name, dict(sample.labels), sample.value)
            yield made


class Kept(Renewed):
    """The same families each time."""

    def collect(self) -> Iterable[Metric]:
        """Hand them out."""
        return self.families


def ours(families: list[Metric]) -> list[MetricFamily]:
    """The same as the exporter has them."""
    return [
        MetricFamily(
            OurMetric(
                family.samples[0].name,
                "counter" if family.type == "counter" else "gauge",
                family.documentation,
            ),
            [(labels(**sample.labels), sample.value) for sample in family.samples],
        )
        for family in families
    ]


def compare(exposition: str) -> dict[str, float]:
    """CPU milliseconds of each way."""
    families = [each for each in text_string_to_metric_families(exposition) if each.samples]
    registries = {}
    for name, collector in (("renewed", Renewed(families)), ("kept", Kept(families))):
        registries[name] = CollectorRegistry()
        registries[name].register(collector)
    mine = ours(families)
    return {
        "samples": sum(len(each.samples) for each in families),
        "ours_ms": cpu_milliseconds(lambda: render(mine)),
        "client_ms": cpu_milliseconds(lambda: generate_latest(registries["renewed"])),
        "client_writing_ms": cpu_milliseconds(lambda: generate_latest(registries["kept"])),
    }


if __name__ == "__main__":
    print(json.dumps(compare(Path(sys.argv[1]).read_text())))
