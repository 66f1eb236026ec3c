"""Run in an emulated machine by `emulated.run`: a real Slurm that constrains devices on cgroup v2.

A job sleeps with a simulated GPU, another names that GPU in its environment. Writes what the
exporter, beside the helper, says of both.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e import exporter, slurm
from tests.fake_nvml.library import FakeNvml, RunningGpus, compile_into, programs_environment
from tests.helpers.processes import end
from tests.helpers.waiting import scaled, until

INFO = "batchjob_job_gpu_info"
OBSERVED = "batchjob_job_free_gpu_observed_seconds_total"


def main() -> None:
    """Start all, and report."""
    out, folder = Path(sys.argv[1]), Path("/run/gpus")
    library = folder / "library"
    library.mkdir(parents=True)
    compile_into(library)
    fake = FakeNvml(folder / "nvml")
    fake.add_gpus(2)
    settings = programs_environment(folder, library / "libnvidia-ml.so.1")
    environ = [f"{name}={value}" for name, value in settings.items()]
    socket = folder / "socket"
    argv = [sys.executable, "-m", "batchjob_exporter.helper", f"--listen={socket}"]
    helper = subprocess.Popen([*argv, f"--exporter-directory={folder}"])
    flags = ("--collector.disable-defaults", "--collector.jobs", "--collector.gpu",
             "--collector.gpu.interval=1s", f"--path.helper={socket}")  # fmt: skip
    with (
        RunningGpus(fake, 2),
        slurm.cluster(cgroup=2, nodes=1, memory_mb=500, gpus=2, accounting=False) as cluster,
        exporter.running(*flags, inside=cluster.inside("env", *environ)) as target,
    ):  # fmt: skip
        idle = cluster.submit("alice", "sleep 3600", "--gres=gpu:1", "--mem=50M")
        forging = cluster.submit("bob", "export CUDA_VISIBLE_DEVICES=0\nsleep 3600", "--mem=50M")
        cluster.wait(idle, forging, state="RUNNING")
        until(
            lambda: target.scrape(scaled(15)).series(INFO, jobid=idle, source="devices"),
            "the job's GPU by its device program", 60,
        )  # fmt: skip
        until(lambda: target.scrape(scaled(15)).value(OBSERVED, jobid=idle), "it is watched", 60)
        scrape = target.scrape(scaled(15))
        found = {job: scrape.series(INFO, jobid=job) for job in (idle, forging)}
        watched = scrape.value(OBSERVED, jobid=idle)
        report = {"idle": found[idle], "forging": found[forging], "observed_seconds": watched}
        (out / "report.json").write_text(json.dumps(report))
    end(helper)


if __name__ == "__main__":
    main()
