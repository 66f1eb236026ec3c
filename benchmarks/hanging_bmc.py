"""What a BMC that hangs costs a scrape: nothing.

    python -m benchmarks.hanging_bmc                # 20 jobs, 5 rounds of 400 scrapes of each
    python -m benchmarks.hanging_bmc --rounds 2

Exporters run side by side on one job tree and are scraped in turn, so that whatever else the
machine does hits all of them: two without IPMI, whose difference is the noise of this machine; one
with a BMC that answers; and one each with a BMC that hangs at every request, in-band (the simulated
kernel driver), over the network (pyghmi's BMC on 127.0.0.1, which goes silent after the login) and
behind a command that never ends.

Needs root (for the job tree) and pyghmi. Exit status 1 if a hanging BMC moves the 99th percentile
of all scrapes by 2 ms or more beyond that noise, which is larger on a busy machine.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import trees
from benchmarks.scrape import scraper
from tests.e2e import exporter
from tests.helpers.waiting import until

REPOSITORY = Path(__file__).parents[1]
LIMIT_MS = 2.0
FOREVER = "--collector.ipmi.timeout=600s"
IN_BAND = (sys.executable, "-m", "benchmarks.hanging_bmc", "--in-band")


def main_with_silent_device(arguments: list[str]) -> None:
    """The exporter, on a kernel driver whose BMC never answers."""
    from batchjob_exporter.main import main
    from collectors.power.ipmi import collector
    from collectors.power.ipmi.in_band import IpmiDevice
    from tests.simulated.bmc import SimulatedBmc
    from tests.simulated.ipmi_driver import SimulatedDriver

    def open_device(_dev: str) -> IpmiDevice:
        driver = SimulatedDriver(SimulatedBmc())
        driver.silent = True
        return IpmiDevice(driver.descriptor, driver.ioctl)

    collector.open_device = open_device
    sys.argv = ["batchjob_exporter", *arguments]
    sys.exit(main())


@contextlib.contextmanager
def bmc(silent: bool) -> Iterator[tuple[str, ...]]:
    """pyghmi's BMC; gives the flags that lead to it."""
    with (
        tempfile.NamedTemporaryFile("w", suffix=".password") as secret,
        subprocess.Popen(
            [sys.executable, "tests/simulated/lan_bmc.py", "345"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        ) as process,
    ):  # fmt: skip
        secret.write("geheim\n")
        secret.flush()
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        process.stdin.write("silent on\n" if silent else "silent off\n")
        process.stdin.flush()
        process.stdout.readline()
        try:
            yield (
                "--collector.ipmi.access=lan", "--collector.ipmi.host=127.0.0.1",
                f"--collector.ipmi.port={port}", "--collector.ipmi.user=power",
                f"--collector.ipmi.password-file={secret.name}",
                "--collector.ipmi.interval=1s",
            )  # fmt: skip
        finally:
            process.kill()


@contextlib.contextmanager
def exporters(jobs: int) -> Iterator[dict[str, exporter.Target]]:
    """One for each case, on one tree."""
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(trees.make("copy", jobs))
        common = ("--collector.disable-defaults", "--collector.jobs", "--collector.ipmi",
                  f"--path.cgroupfs={tree.cgroupfs}")  # fmt: skip
        answering, silent = (stack.enter_context(bmc(each)) for each in (False, True))
        command = ("--collector.ipmi.access=command", "--collector.ipmi.command=sleep 240")
        cases = {
            "no IPMI": ((*common, "--no-collector.ipmi"), ()),
            "no IPMI, again": ((*common, "--no-collector.ipmi"), ()),
            "BMC answers": ((*common, *answering), ()),
            "hangs, in-band": ((*common, FOREVER), IN_BAND),
            "hangs, network": ((*common, *silent, FOREVER), ()),
            "hangs, command": ((*common, *command, FOREVER), ()),
        }
        targets = {
            name: stack.enter_context(exporter.running(*flags, inside=inside))
            for name, (flags, inside) in cases.items()
        }
        for target in targets.values():
            until(partial(_sees, target, jobs), "all jobs seen", timeout=60, interval=0.5)
        until(lambda: _watts(targets["BMC answers"]), "the BMC's watts", timeout=30, interval=0.5)
        yield targets


def _sees(target: exporter.Target, jobs: int) -> bool:
    return len(target.scrape().series("batchjob_job_info")) >= jobs


def _watts(target: exporter.Target) -> bool:
    return bool(target.scrape().series("batchjob_ipmi_power_watts"))


def measure(targets: dict[str, exporter.Target], scrapes: int) -> dict[str, list[float]]:
    """Milliseconds of each scrape, the cases in turn."""
    scrape = {name: scraper(f"http://{each.address}/metrics") for name, each in targets.items()}
    seen: dict[str, list[float]] = {name: [] for name in targets}
    for _ in range(scrapes):
        for name, fetch in scrape.items():
            began = time.perf_counter()
            fetch()
            seen[name].append(1e3 * (time.perf_counter() - began))
    return seen


def percentile(values: list[float], percent: int) -> float:
    """Of the sorted values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> int:
    """Print the table; 1 if a hanging BMC is felt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scrapes", type=int, default=400, help="of each case in a round")
    options = parser.parse_args()
    with exporters(options.jobs) as targets:
        rounds = [measure(targets, options.scrapes) for _ in range(options.rounds)]
    pooled = {name: [ms for each in rounds for ms in each[name]] for name in rounds[0]}
    high = {name: percentile(values, 99) for name, values in pooled.items()}
    moved = {name: each - high["no IPMI"] for name, each in high.items()}
    print("| case | p50 ms | p99 ms | p99 - p99 without IPMI, ms |\n|---|---|---|---|")
    for name, values in pooled.items():
        print(f"| {name} | {percentile(values, 50):.2f} | {high[name]:.2f} | {moved[name]:+.2f} |")
    worst = max(each for name, each in moved.items() if name.startswith("hangs"))
    return 0 if worst < LIMIT_MS + abs(moved["no IPMI, again"]) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-band"]:
        # The remaining arguments are `python -m batchjob_exporter FLAGS`.
        main_with_silent_device(sys.argv[5:])
    sys.exit(main())
