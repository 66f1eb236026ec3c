"""Run in an emulated machine by `emulated.run`: a real Slurm that constrains devices on cgroup v2.

Writes what is scraped, before the three jobs of `idle_jobs` and while they run, of an exporter with
the rights of its unit and of one beside the helper.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.e2e import exporter, idle_jobs, slurm
from tests.e2e.idle_jobs import IDLE, INFO, OBSERVED, WORKING
from tests.fake_nvml.library import FakeNvml, RunningGpus, compile_into, programs_environment
from tests.helpers.waiting import scaled

GPUS = 3
FLAGS = (
    "--collector.disable-defaults", "--collector.jobs", "--collector.gpu",
    "--collector.gpu.interval=1s",
)  # fmt: skip
COMPLETE_SCRAPES, MOST_SCRAPES = 8, 60
PAUSE_SECONDS = 2.0

Scrapes = dict[str, exporter.Scrape]  # by exporter


def main() -> None:
    """Start all, and record."""
    out, folder = Path(sys.argv[1]), Path("/run/gpus")
    library = folder / "library"
    library.mkdir(parents=True)
    compile_into(library)
    fake = FakeNvml(folder / "nvml")
    fake.add_gpus(GPUS)
    settings = programs_environment(folder, library / "libnvidia-ml.so.1")
    environ = [f"{name}={value}" for name, value in settings.items()]
    with contextlib.ExitStack() as made:
        gpus = made.enter_context(RunningGpus(fake, GPUS))
        cluster = made.enter_context(
            slurm.cluster(
                cgroup=2, nodes=1, cpus=4, memory_mb=500, gpus=GPUS, accounting=False,
                users=idle_jobs.MORE_USERS,
            )
        )  # fmt: skip
        helper = made.enter_context(exporter.helper_as_the_unit(folder))
        inside = cluster.inside("env", *environ)
        targets = {
            name: made.enter_context(exporter.as_the_unit(*FLAGS, *more, inside=inside))
            for name, more in (("alone", ()), ("helped", (f"--path.helper={helper}",)))
        }
        before = [_scraped(targets)]
        began = int(time.time())
        jobs = idle_jobs.submit(cluster, gpus)
        during = list(_scraped_with(targets, jobs))
        allocated = idle_jobs.allocated(cluster, jobs)
        states = cluster.states()
        report = {
            "node": cluster.nodes[0], "began": began,
            "before": _texts(before), "during": _texts(during),
            "jobs": {
                user: {"jobid": job, "state": states[job], "gpus": len(allocated[user])}
                for user, job in jobs.items()
            },
        }  # fmt: skip
        (out / "report.json").write_text(json.dumps(report))


def _scraped(targets: Mapping[str, exporter.Target]) -> Scrapes:
    time.sleep(PAUSE_SECONDS)
    return {name: target.scrape(scaled(15)) for name, target in targets.items()}


def _scraped_with(
    targets: Mapping[str, exporter.Target], jobs: Mapping[str, str]
) -> Iterator[Scrapes]:
    """Scrapes from the jobs' begin on, and several that have all that is told of their GPUs."""
    complete = 0
    for number in range(MOST_SCRAPES):
        scrapes = _scraped(targets)
        yield scrapes
        alone, helped = scrapes.values()
        complete += bool(
            alone.value(OBSERVED, jobid=jobs[IDLE])
            and alone.series(INFO, jobid=jobs[WORKING], confirmed="true")
            and helped.series(INFO, jobid=jobs[IDLE], source="devices")
        )
        print(f"{number + 1} scrapes, {complete} with all that is told", flush=True)
        if complete == COMPLETE_SCRAPES:
            return


def _texts(phase: Sequence[Scrapes]) -> list[dict[str, tuple[float, str]]]:
    return [
        {name: (scrape.time, scrape.text) for name, scrape in scrapes.items()} for scrapes in phase
    ]


if __name__ == "__main__":
    main()
