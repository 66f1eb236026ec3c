"""What a site takes, by the name of the figure."""

import contextlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import trees
from benchmarks.site.chain import Form, Totals, running
from benchmarks.site.clients import answer_times, asked
from benchmarks.site.processes import memory_bytes
from tests.e2e import exporter
from tests.helpers.waiting import until


def exposition(jobs: int) -> str:
    """What a real exporter says of a node with so many jobs. Needs root."""
    with (
        trees.make("copy", jobs) as tree,
        contextlib.redirect_stdout(sys.stderr),
        exporter.running(f"--path.cgroupfs={tree.cgroupfs}") as target,
    ):
        until(lambda: len(target.scrape().series("batchjob_job_info")) >= jobs, "jobs", 60, 0.5)
        tree.stir()
        return target.scrape().text


def measured(form: Form, text: str) -> dict[str, float]:
    """Run a site and say what it took, by the name of the figure."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bj-site-") as folder,
        running(form, text, Path(folder)) as chain,
    ):
        first = form.nodes * form.jobs
        chain.wait(lambda: chain.on_record() >= first, "the first poll")
        chain.wait(lambda: chain.store.up() >= form.nodes, f"{form.nodes} nodes up")
        before = chain.totals()
        time.sleep(form.watched)
        chain.wait(lambda: chain.measured() > before.counts["measured"], "measured jobs")
        after = chain.totals()
        now = {
            "nodes up": chain.store.up(),
            "s, 99 % of scrapes": chain.store.scrape_seconds(),
            "s, a poll": chain.poll_seconds(),
            "queries that failed": chain.failed_queries(),
        }
        answered = asked(chain)
        last = chain.totals()
        found = costs(form, before, after) | now
        found |= answer_times(answered)
        spent = last.cpu["server"] - after.cpu["server"]
        found["server, % of a core, asked"] = 100 * spent / (last.time - after.time)
        for name, pid in chain.pids.items():
            found[f"{name}, MB"] = memory_bytes(pid) / 1e6
        return found


def costs(form: Form, before: Totals, after: Totals) -> dict[str, float]:
    """What happened between two moments without people."""
    seconds = after.time - before.time
    delta = {name: after.counts[name] - before.counts[name] for name in after.counts}
    cpu = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
    samples = delta["samples"] / seconds
    found = {
        "series at once": samples * form.interval,
        "series in the store": after.counts["series"],
        "samples/s": samples,
        "bytes of a scrape, gzip": delta["wire_bytes"] / delta["pages"],
        "bytes of a scrape, text": delta["text_bytes"] / delta["pages"],
        "jobs ended/h": 3600 * delta["ended"] / seconds,
        "jobs measured": delta["measured"],
        "queries, a cycle": delta["queries"] * form.interval / seconds,
        "queries, 1000 jobs": 1000 * delta["queries"] / max(1.0, delta["measured"]),
        "poller CPU s, 1000 jobs": 1000 * cpu["poller"] / max(1.0, delta["measured"]),
        "store CPU ms, 1000 samples": 1e6 * cpu["store"] / max(1.0, delta["samples"]),
    }
    return found | {f"{name}, % of a core": 100 * spent / seconds for name, spent in cpu.items()}
