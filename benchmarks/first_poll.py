"""What the first poll of a site costs: ended jobs with two steps each, by sacct.

    PYTHONPATH=. python benchmarks/first_poll.py [JOBS]

Prints CPU seconds and the peak of resident memory, beside the CPU seconds of a fixed loop just
before and after, for on a busy machine both take longer. sacct is a program of its own that prints
what was made before, so that its time is not the poller's.
"""

import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from batchjob.schedulers.slurm.accounting.sacct_records import FIELDS
from tests.simulated.slurm import SimulatedSlurm, SlurmJob

JOBS = 100_000
DAY = 86_400
PROGRAM = """#!{python}
import json, shutil, sys
words = sys.argv[1:]
if words == ["--helpformat"]:
    print({fields!r})
    sys.exit()
delimiter = next(w.partition("=")[2] for w in words if w.startswith("--delimiter="))
begin, end = (int(words[words.index(name) + 1][3:]) for name in ("--starttime", "--endtime"))
offsets = json.load(open({folder!r} + "/offsets"))
found = [at for time, at in offsets if begin <= time <= end]
if found:
    with open({folder!r} + "/answer", encoding="utf-8") as file:
        file.seek(found[0])
        last = max(found)
        while file.tell() <= last and (line := file.readline()):
            sys.stdout.write(line.replace("\\x1f", delimiter))
"""


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, total, int(time.time()))
        config = {
            "db": {"url": f"sqlite:///{folder}/jobs.db"},
            "clusters": [
                {"name": "c1", "sources": {"sacct": {"sacct": f"{folder}/sacct", "squeue": "true"}}}
            ],
        }
        (folder / "config.yml").write_text(json.dumps(config))
        command = [sys.executable, "-m", "batchjob_stats_db.main"]
        command += ["--config.file", str(folder / "config.yml")]
        subprocess.run([*command, "migrate"], check=True, capture_output=True)
        subprocess.run([sys.executable, __file__, "--child", *command, "--once"], check=True)
        with sqlite3.connect(folder / "jobs.db") as db:
            counts = [
                db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("job", "job_step")
            ]
        print(f"{counts[0]} jobs, {counts[1]} steps")


def prepare(folder: Path, total: int, now: int) -> None:
    """A day's jobs in the order of their ends, as one text, and where each begins."""
    slurm = SimulatedSlurm(now)
    words = ["--starttime", "uts0", "--jobs", "1", f"--format={','.join(FIELDS)}"]
    offsets, at = [], 0
    with (folder / "answer").open("w", encoding="utf-8") as file:
        for number in range(total):
            end = now - DAY + 60 + int(number * (DAY - 120) / total)
            job = SlurmJob(1, end - 700, end - 600, end, steps=2, nodes=f"n{number % 500:03}")
            slurm.add(job)
            job.jobid = 1000 + number
            text = "".join(slurm.sacct([*words, "--delimiter=\x1f"]))
            slurm.by_id.clear()
            slurm.by_end.clear()
            slurm.waiting.clear()
            offsets.append((end, at))
            at += file.write(text)
    (folder / "offsets").write_text(json.dumps(offsets))
    program = folder / "sacct"
    program.write_text(
        PROGRAM.format(python=sys.executable, fields=" ".join(FIELDS), folder=str(folder))
    )
    program.chmod(0o755)


def child(command: list[str]) -> None:
    """Run the poller in this process, so that its children are told apart."""
    from batchjob_stats_db.main import main as poll

    before = additions()
    begun = time.monotonic()
    status = poll(command[3:])
    spent, seconds = time.process_time() - before, time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"status {status}, {seconds:.1f} s, CPU {spent:.1f} s, peak {peak / 1024:.0f} MB;"
        f" ten million additions {before:.2f} s before, {additions():.2f} s after"
    )


def additions() -> float:
    """CPU seconds of a loop that is always the same."""
    begun, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - begun


if __name__ == "__main__":
    child(sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
