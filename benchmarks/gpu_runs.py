"""`batchjob run --gpus` on a machine with one real GPU, and a GPU that a device program allots.

Part of benchmarks/gpu_accuracy.py. What the commands said is in DIRECTORY/runs.txt.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_session import (
    HELPER_SOCKET,
    ROOT,
    UTILIZATION_LIMIT,
    Row,
    Session,
    Shown,
    hide,
    of_energy,
    of_utilization,
)
from collectors.kernel import bpf
from tests.collectors.kernel.device_programs import slurm

NVIDIA_MAJOR = 195
USE = 'printf \'{"visible": "%s"}\\n\' "$CUDA_VISIBLE_DEVICES" >> "$TRUTH"; "$LOAD" duty "$TRUTH" '
JOBS = ("gpus_first", "gpus_second", "gpus_left", "gpus_right", "gpus_idle", "gpus_api")
PORT = 19918
PROGRAM_AFTER_SECONDS = 2.0  # Slurm attaches a job's device program after it made the directory
KNOWN_WITHIN_SECONDS = 12.0  # 5 s until it is asked for again, and the intervals of the readings


class Runs:
    """The runs, and what was seen of them at the time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seen: list[Row] = []
        self.notes = session.directory / "runs.txt"
        self.url = f"http://127.0.0.1:{PORT}"
        options = (f"--listen-address=127.0.0.1:{PORT}", "--runs.remote", "--no-demo")
        self.up = subprocess.Popen(
            [*session.batchjob("up"), *options], cwd=ROOT, stdout=session.log, stderr=session.log
        )

    def close(self) -> None:
        """End `batchjob up`."""
        self.up.send_signal(signal.SIGINT)
        try:
            self.up.wait(10)
        except subprocess.TimeoutExpired:
            self.up.kill()

    def run(self) -> None:
        """Try everything; whatever fails is a row."""
        for part in (self.wait_for_the_other, self.ask_at_once, self.leave_idle, self.refuse,
                     self.start_over_the_api, self.allot_late):  # fmt: skip
            self._try(part)

    def _try(self, part: Callable[[], None]) -> None:
        print(f"{time.strftime('%T')} {part.__name__}", flush=True)
        try:
            part()
        except Exception as error:  # the others go on
            text = f"{type(error).__name__}: {error}"
            self.seen.append(Row("gpus", part.__name__, None, text, None, 0.0))

    def rows(self) -> Iterator[Row]:
        """What was seen, and the figures of each run."""
        for part in (self.show, self.show_usage):
            self._try(part)
        yield from self.seen
        for name in (*JOBS, "allotted"):
            try:
                truth = self.session.truth(name)
                shown = Shown(self.session.scrapes[-1][1], self.session.jobid(name))
                wall = truth["ended"] - truth["began"]
                for check in (of_utilization, of_energy):
                    yield from check(self.session, name, truth, wall, shown)
            except Exception as error:  # the others are reported
                text = f"{type(error).__name__}: {error}"
                yield Row(name, "figures", None, text, None, 0.0)

    def wait_for_the_other(self) -> None:
        """A second run waits until the first has ended."""
        first = self._start("gpus_first", "percent=60 seconds=8")
        self._until(lambda: self.session.record("gpus_first").get("gpu_list"), 10)
        second = self._start("gpus_second", "percent=100 seconds=2")
        reason = "0 of 1 GPUs free, 1 asked for"
        told = self._until(lambda: self._recorded("gpus_second").get("reason") or None, 15)
        self._expect("gpus_second", "state while it waits", "PENDING",
                     self._recorded("gpus_second").get("state"))  # fmt: skip
        self._expect("gpus_second", "reason", reason, told)
        for command in (("jobs",), ("jobs", "--format=json"),
                        ("job", self.session.jobid("gpus_second")),
                        ("job", self.session.jobid("gpus_first"))):  # fmt: skip
            self._say(*command)
        self._await(first, second)
        self._follows("gpus_first", "gpus_second")

    def ask_at_once(self) -> None:
        """Two runs that ask for the last GPU at the same time."""
        self._await(*(self._start(name, "percent=100 seconds=2") for name in JOBS[2:4]))
        self._follows(*sorted(JOBS[2:4], key=lambda name: self.session.truth(name)["began"]))

    def leave_idle(self) -> None:
        """A run that does not touch its GPU."""
        options = ("--gpus=1", "--time-limit=60")
        self._await(self.session.start_job(JOBS[4], "sleep 5", *options))
        jobid = self.session.jobid(JOBS[4])
        found = {
            (labels["source"], labels["confirmed"])
            for _, samples in self.session.scrapes
            for labels, _ in samples.get("batchjob_job_gpu_info", ())
            if labels["jobid"] == jobid
        }
        expected = {("CUDA_VISIBLE_DEVICES", "false")}
        self._expect(JOBS[4], "source of its GPU", str(expected), str(found))

    def refuse(self) -> None:
        """More GPUs than the machine has."""
        for count in (9, 2):
            done = self._say("run", f"--gpus={count}", "--", "true")
            words = f"--gpus: {count} asked for, this machine has 1 whole GPU"
            self._expect(f"gpus={count}", "exit status", 2, done.returncode)
            self._expect(f"gpus={count}", "refused with both numbers", True, words in done.stderr)

    def start_over_the_api(self) -> None:
        """Runs of `batchjob up`, with one GPU and with more than there are."""
        token = self.session.data / "data/token"
        server = (f"--server={self.url}", f"--token-file={token}", "--name=gpus_api")
        if not self._until(self._is_ready, 30):
            raise RuntimeError("batchjob up does not answer")
        script = self.session.script("gpus_api", f"{USE}percent=100 seconds=2")
        done = self._say("run", *server, "--gpus=1", "--", "sh", "-c", script, data=False)
        self._expect("gpus_api", "exit status", 0, done.returncode)
        self._until(lambda: self.session.record("gpus_api").get("end_time"), 20)
        done = self._say("run", *server, "--gpus=9", "--", "true", data=False)
        words = "9 asked for, this machine has 1 whole GPU"
        self._expect("gpus_api", "9 refused with both numbers", True, words in done.stderr)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
            return True
        return False

    def allot_late(self) -> None:
        """A device program that is attached after the job's directory was looked at."""
        with contextlib.ExitStack() as stack:
            command = f'sleep {PROGRAM_AFTER_SECONDS + KNOWN_WITHIN_SECONDS}; "$LOAD" duty "$TRUTH" percent=100 seconds=2'  # noqa: E501
            started = time.monotonic()
            job = self.session.start_job("allotted", command)
            other = self.session.start_job(
                "allotted_claimer", "sleep 13", CUDA_VISIBLE_DEVICES=self.session.uuid
            )
            stack.callback(self._await, job, other)
            jobid = self._until(lambda: self.session.jobid("allotted"), 10)
            time.sleep(max(0.0, started + PROGRAM_AFTER_SECONDS - time.monotonic()))
            cgroup = os.open(self._directory(jobid), os.O_RDONLY)
            stack.callback(os.close, cgroup)
            rules = [(NVIDIA_MAJOR, self.session.minor, True)]
            program = bpf.load_program(bpf.CGROUP_DEVICE, slurm(rules))
            stack.callback(os.close, program)
            stack.callback(os.close, bpf.attach(program, cgroup, bpf.DEVICE))
            attached = time.time()
            self._ask_helper(jobid)
            self._await(job, other)
        known = [
            at
            for at, samples in self.session.scrapes
            for labels, _ in samples.get("batchjob_job_gpu_info", ())
            if (labels["jobid"], labels["source"]) == (jobid, "devices")
        ]
        after = min(known) - attached if known else None
        self.seen.append(
            Row("allotted", "known after the program, s", None, "never" if after is None else after,
                after, KNOWN_WITHIN_SECONDS)
        )  # fmt: skip

    def show(self) -> None:
        """Records, status and JSON of the runs that have ended, and what each saw."""
        listed = json.loads(self._say("jobs", "--format=json").stdout)
        by_name = {each["name"]: each for each in listed}
        for name in JOBS:
            record, own = self.session.record(name), by_name.get(name, {})
            self._expect(name, "recorded GPUs", (1, "0"),
                         (record.get("allocated_gpus"), record.get("gpu_list")))  # fmt: skip
            self._expect(name, "GPUs in JSON", (1, "GPUs 0"),
                         (own.get("allocated_gpus"), own.get("allocated_resources")))  # fmt: skip
            status = self._say("job", record["jobid"]).stdout
            self._expect(name, "GPUs in the report", True, "GPUs 0" in status)
            if name != "gpus_idle":
                visible = self.session.truth(name).get("visible")
                self._expect(name, "sees its GPU by UUID", self.session.uuid, visible)

    def show_usage(self) -> None:
        """The figures of `batchjob up`, which measures beside the exporter."""
        for own in json.loads(self._say("jobs", "--limit=100", "--format=json").stdout):
            try:
                self.seen += self._usage_rows(own)
            except Exception as error:  # the others are shown
                text = f"{type(error).__name__}: {error}"
                self.seen.append(Row(own["name"], "up", None, text, None, None))

    def _usage_rows(self, own: dict[str, Any]) -> Iterator[Row]:
        name, limit = own["name"], UTILIZATION_LIMIT if own["name"] in JOBS else None
        truth, recorder = self.session.truth(name), self.session.recorder
        seen = own["usage_gpu_utilization_ratio"]
        true = truth["busy"] / (truth["ended"] - truth["began"])
        difference = None if seen is None else seen - true
        yield Row(name, "up: utilization", true, "absent" if seen is None else seen, difference,
                  limit)  # fmt: skip
        joules = recorder.joules_at(truth["ended"]) - recorder.joules_at(truth["began"])
        parts = [own[f"usage_energy_gpu_{part}_joules"] for part in ("active", "idle")]
        if None in parts:
            yield Row(name, "up: energy, J", joules, "absent", None, None)
        else:
            yield Row(name, "up: energy, J", joules, sum(parts), sum(parts) / joules - 1, None)

    def _directory(self, jobid: str) -> Path:
        """The job's cgroup of version 2. Raises RuntimeError."""
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if Path(root, "cgroup.controllers").exists():
                for found in Path(root).rglob(f"run-{jobid}*"):
                    return found
        raise RuntimeError("the job has no cgroup of version 2")

    def _ask_helper(self, jobid: str) -> None:
        """What the helper says of the device program itself."""
        path = os.path.relpath(self._directory(jobid), "/sys/fs/cgroup")
        device = [NVIDIA_MAJOR, self.session.minor]
        with socket.socket(socket.AF_UNIX) as helper:
            helper.settimeout(5)
            helper.connect(HELPER_SOCKET)
            helper.sendall(json.dumps({"devices": path, "numbers": [device]}).encode() + b"\n")
            answer = json.loads(helper.makefile().readline())
        self._expect("allotted", "answer of the helper", {"devices": [device]}, answer)

    def _start(self, name: str, use: str) -> subprocess.Popen[bytes]:
        return self.session.start_job(name, USE + use, "--gpus=1", "--time-limit=60")

    def _await(self, *jobs: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 30
        for job in jobs:
            try:
                job.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.terminate()
                self.seen.append(Row("gpus", f"{job.args}", None, "does not end", None, 0.0))

    def _recorded(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(RuntimeError, ValueError):
            return self.session.record(name)
        return {}

    def _follows(self, first: str, second: str) -> None:
        """The second has begun after the first's end, and soon."""
        before, after = self.session.record(first), self.session.record(second)
        gap = after["start_time"] - before["end_time"]
        self.seen.append(Row(second, f"start after {first}, s", 0.0, gap, gap, 2.0))
        overlap = max(0.0, self.session.truth(first)["ended"] - self.session.truth(second)["began"])
        self.seen.append(Row(second, "commands at the same time, s", 0.0, overlap, overlap, 0.0))

    def _expect(self, name: str, quantity: str, expected: object, found: object) -> None:
        is_as_expected = found == expected
        text = str(found) if is_as_expected else f"{found}, not {expected}"
        self.seen.append(
            Row(name, quantity, None, hide(text), 0.0 if is_as_expected else None, 0.0)
        )

    def _say(
        self, command: str, *words: str, data: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of batchjob, and note what it said."""
        program = self.session.batchjob(command)
        done = subprocess.run(
            [*(program if data else program[:4]), *words], cwd=ROOT, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        said = f"$ batchjob {command} {' '.join(words)}\n{done.stdout}{done.stderr}"
        with self.notes.open("a") as file:
            file.write(hide(f"{said}exit status {done.returncode}\n\n"))
        return done

    def _until(self, condition: Callable[[], Any], seconds: float) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError, ValueError):
                if found := condition():
                    return found
            time.sleep(0.05)
        return None
