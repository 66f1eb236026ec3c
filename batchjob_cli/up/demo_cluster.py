"""Starts example jobs on this machine, and plays the recorded cluster beside the real jobs.

The cluster has a name of its own, and can be removed. It is a source of job records for the poller,
which writes, measures and sums them as those of any cluster, and it writes the files of samples
from which the jobs are measured.
"""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob.runtime.settings import LogOptions
from batchjob.schedulers.accounting import Batch, SourceError, SubmittedJob, UnfinishedJob
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.states import JobState
from batchjob_cli.up import demo_recording
from batchjob_cli.up.demo_recording import CLUSTER, INTERVAL_SECONDS, SOURCE, DemoJob, Recording
from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.pending import JOB_COLUMNS, jobs_to_measure
from batchjob_stats_db.measure.writer import write_usages
from batchjob_stats_db.poller.options import (
    BackupOptions,
    ClusterSettings,
    DatabaseOptions,
    PollerSettings,
    PollerWebOptions,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.samples import folder
from batchjob_stats_db.samples.writer import Writer

_POLL_SECONDS = 10.0
_JOBS_OF_NAME, _DAY_SECONDS = 5, 86400
_FILES_AT_ONCE = 20  # jobs whose samples are written between two looks at whether to stop


class DemoSource:
    """The records of the recorded jobs; see AccountingSource and ScriptSource."""

    name, cluster, script_bytes = SOURCE, CLUSTER, 1 << 16

    def __init__(
        self, recording: Recording, samples: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self.recording = recording
        self._samples = samples
        self._clock = clock
        self._started = clock()
        self._known: dict[str, JobRecord] = {}
        self._live: dict[str, list[_SampleFile]] = {}  # running jobs
        self._ended = self._ended_before()

    @property
    def job_count(self) -> int:
        """The number of jobs that have been submitted."""
        return len(self._known)

    def check(self) -> tuple[str, ...]:
        return ()

    def watermark_at(self, since: int) -> str:
        return str(since)

    def read(self, _watermark: str, _unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """The jobs that have changed; see AccountingSource.

        Samples of running jobs are written before, those of older jobs, newest first, afterwards.
        """
        now = int(self._clock())
        try:
            self._write_samples(now)
            yield Batch(tuple(self.changed(now)), (), str(now), now)
            while self._ended:
                for job in self._ended[:_FILES_AT_ONCE]:
                    self._open(job, lives=False, now=now)
                del self._ended[:_FILES_AT_ONCE]
                yield Batch((), (), str(now), now)
        except OSError as error:
            raise SourceError(f"samples of the demo: {error}") from error

    def changed(self, now: int) -> Iterator[JobRecord]:
        """The records that have changed since the last call, in their state at a time."""
        blocked: set[str] = set()  # partitions whose next job is known; the others wait behind it
        for job in self.recording.jobs:
            if job.record.submit_time > now:
                return
            record = job.record_at(now)
            if record.state is JobState.PENDING and not record.reason:
                reason = "Priority" if record.partition in blocked else "Resources"
                blocked.add(record.partition)
                record = record._replace(reason=reason)
            if self._known.get(record.jobid) != record:
                self._known[record.jobid] = record
                yield record

    def script(self, job: SubmittedJob) -> str:
        known = self._known.get(job.jobid)
        return self.recording.scripts.get(known.name, "") if known else ""

    def _ended_before(self) -> list[DemoJob]:
        """The jobs that had ended when the demo started, and get samples; newest first.

        They are the jobs of the last day, the last ones of each name, and those that were ended.
        """
        ended = [job for job in self.recording.jobs if job.loads and not self._is_ahead(job)]
        ended.sort(key=lambda job: job.record.end_time or 0, reverse=True)
        seen: Counter[str] = Counter()
        chosen = []
        for job in ended:
            seen[job.record.name] += 1
            is_recent = (job.record.end_time or 0) > self._started - _DAY_SECONDS
            if (
                is_recent
                or seen[job.record.name] <= _JOBS_OF_NAME
                or job.record.state not in (JobState.COMPLETED, JobState.FAILED)
            ):
                chosen.append(job)
        return chosen

    def _is_ahead(self, job: DemoJob) -> bool:
        return job.record.end_time is None or job.record.end_time > self._started

    def _write_samples(self, now: float) -> None:
        """Continue the files of running jobs until a time; raises OSError."""
        for jobid, opened in list(self._live.items()):
            if not sum(file.advance(now) for file in opened):
                self._live[jobid] = []
        for job in self.recording.jobs:
            start = job.record.start_time
            if job.record.submit_time > now:
                return
            if start is None or start > now or job.record.jobid in self._live:
                continue
            if self._is_ahead(job):
                self._live[job.record.jobid] = self._open(job, lives=True, now=now)

    def _open(self, job: DemoJob, *, lives: bool, now: float) -> list["_SampleFile"]:
        """Files of a job, one for each node, written until a time; raises OSError."""
        record, count, opened = job.record, job.sample_count(lives), []
        path = folder.folder_of(self._samples, record.jobid)
        interval = (record.elapsed_seconds or 0.0) / count
        for node_index, share in enumerate(record.nodes):
            header = SampleHeader("slurm", record.jobid, record.user, share.node, interval)
            writer = Writer(path, header, record.start_time or 0.0)
            opened.append(_SampleFile(writer, job.samples(node_index, count)))
        return [file for file in opened if file.advance(now)]


class _SampleFile:
    def __init__(self, writer: Writer, samples: Iterator[JobSample]) -> None:
        self._writer = writer
        self._samples = samples
        self._next = next(samples, None)

    def advance(self, now: float) -> bool:
        """Write the samples until a time; whether more will come. Raises OSError."""
        while self._next is not None and self._next.at <= now:
            self._writer.write(self._next)
            self._next = next(self._samples, None)
        if self._next is None:
            self._writer.close()
        return self._next is not None


def load(engine: Engine, samples: Path, clock: Callable[[], float] = time.time) -> DemoSource:
    """Write all jobs until now, in place of those of an earlier demo; raises OSError."""
    remove(engine, samples)
    now = int(clock())
    source = DemoSource(demo_recording.read(now), samples, clock)
    store = Store(engine, CLUSTER, UsagePolicy(), clock)
    store.write_associations(source.recording.associations, "sacctmgr")
    store.write(Batch(tuple(source.changed(now)), (), str(now), now), SOURCE)
    jobs = {job.record.jobid: job for job in source.recording.jobs}
    job = schema.job.c
    ended = sa.select(*JOB_COLUMNS).where(
        job.cluster == CLUSTER, job.end_time.is_not(None), job.start_time.is_not(None)
    )
    with engine.begin() as db:
        found = jobs_to_measure(db, CLUSTER, db.execute(ended).all(), UsagePolicy(), now)
        usages = {target: jobs[target.jobid].measured(target.id) for target in found}
        write_usages(db, CLUSTER, "samples", usages, UsagePolicy(), now)
    return source


def poller_settings(source: DemoSource, url: str, samples: Path) -> PollerSettings:
    cluster = ClusterSettings(
        CLUSTER, (source,), (), TsdbOptions(scrape_interval=INTERVAL_SECONDS), str(samples)
    )
    return PollerSettings(
        DatabaseOptions(url), PollerWebOptions(),
        PollOptions(interval=_POLL_SECONDS, rollup_interval=60.0),
        RetentionOptions(), BackupOptions(), LogOptions(), (cluster,),
    )  # fmt: skip


def remove(engine: Engine, samples: Path) -> None:
    """Remove all of it, if it exists; raises OSError."""
    with engine.begin() as db:
        job = schema.job.c
        ids = db.scalars(sa.select(job.jobid).where(job.cluster == CLUSTER)).all()
        for table in reversed(schema.metadata.sorted_tables):
            column = table.c.get("name" if table is schema.cluster else "cluster")
            if column is not None and table is not schema.api_token:
                db.execute(sa.delete(table).where(column == CLUSTER))
        scripts.delete_unused(db)
    for jobid in ids:
        folder.delete_job(samples, jobid)


_PATIENCE_SECONDS = 30.0


# Name of an example job, its options of `batchjob run`, and a Python program.
_EXAMPLES = (
    (
        "busy",
        ("--cpus=1", "--memory=256M"),
        "import time\nend = time.time() + 120\nwhile time.time() < end: sum(range(10_000))",
    ),
    ("idle", ("--cpus=2", "--memory=1G"), "import time\ntime.sleep(180)"),
    (
        "memory-hungry",
        ("--cpus=1", "--memory=512M"),
        "import time\nheld = []\n"
        "for step in range(60):\n    held.append(bytearray(4 << 20)); print(step, flush=True)\n"
        "    time.sleep(2)",
    ),
    (
        "input-output",
        ("--cpus=1", "--memory=256M"),
        "import os, tempfile, time\nwith tempfile.TemporaryFile(dir='.') as file:\n"
        "    for step in range(100):\n        file.seek(0); file.write(os.urandom(8 << 20))\n"
        "        file.flush(); os.fsync(file.fileno()); time.sleep(1)",
    ),
    (
        "failing",
        ("--cpus=1", "--memory=128M"),
        "import sys, time\ntime.sleep(5)\nprint('no such input: data.csv', file=sys.stderr)\n"
        "sys.exit(3)",
    ),
)


def start_runs(data: Path) -> list[subprocess.Popen[str]]:
    """Start the example jobs in the background, all at once; each prints its id when it starts."""
    scratch = data / "demo"
    scratch.mkdir(mode=0o700, exist_ok=True)
    processes = []
    for name, options, program in _EXAMPLES:
        argv = [
            sys.executable, "-m", "batchjob_cli", "run", "--server=", "--detach",
            "--data", str(data), "--name", name, *options,
            "--", sys.executable, "-c", program,
        ]  # fmt: skip
        with contextlib.suppress(OSError):
            processes.append(
                subprocess.Popen(  # noqa: S603 (fixed command)
                    argv, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
    return processes


def wait_for_ids(processes: Iterable[subprocess.Popen[str]]) -> list[str]:
    """The ids of those that could be started, once each has started or failed."""
    ids = []
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
            if process.returncode == 0:
                ids.append(output.strip())
    return ids
