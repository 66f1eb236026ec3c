"""Exporter → vmagent → store → a second store that demands a token → poller → database."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine
from tests.e2e import exporter, recorded_job, targets, victoriametrics
from tests.e2e.processes import free_ports, until
from tests.e2e.recorded_job import CPU_SECONDS, JOB, OWNER, TREE

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy" / "victoriametrics"
TOKEN = "a-token-of-its-own"


@pytest.fixture(autouse=True)
def programs():
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)


def unit_flags(replaced):
    """vmagent's flags as the unit and its default file have them, with these words replaced."""
    unit = (DEPLOY / "vmagent.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    default = (DEPLOY / "vmagent.default").read_text()
    (elsewhere,) = re.findall(r'^# ELSEWHERE="(.*)"$', default, re.MULTILINE)
    text = command.replace("\\\n", " ").replace("$ELSEWHERE", elsewhere)
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return [flag for flag in shlex.split(text) if "httpListenAddr" not in flag]


def scrape_configuration(folder, port):
    """prometheus.yml of the repository; other places and ports, and a scrape each second."""
    text = (REPOSITORY / "prometheus/prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/batchjob", str(folder)).replace(":10910", f":{port}")
    config = folder / "prometheus.yml"
    config.write_text(text.replace("scrape_interval: 30s", "scrape_interval: 1s"))
    targets = [{"targets": ["localhost"], "labels": {"cluster": "alpha"}}]
    (folder / "nodes-alpha.json").write_text(json.dumps(targets))
    return config


def poll(folder, url, records):
    """Run the poller's cycle over these records, asking `url` with the token; the database."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    (folder / "jobs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    database = f"sqlite:///{folder}/jobs.db"
    tsdb = {"url": url, "token-file": f"{folder}/token", "scrape-interval": "1s", "linger": "2s"}
    sources = {"jsonl": {"path": f"{folder}/jobs.jsonl"}}
    settings = {"db": {"url": database}, "tsdb": tsdb}
    settings["clusters"] = [{"name": "alpha", "sources": sources}]
    (folder / "stats_db.yml").write_text(yaml.safe_dump(settings))
    for command in ("migrate", "--once"):
        argv = [sys.executable, "-m", "batchjob_stats_db.main", "--config.file"]
        argv += [str(folder / "stats_db.yml"), command]
        done = subprocess.run(
            argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
    return database


def test_a_jobs_use_reaches_the_database_through_both_stores(unpacked, as_recorded, tmp_path):
    (port,) = free_ports(1)
    flags = recorded_job.exporter_flags(unpacked(TREE))
    flags = (*flags, f"--web.listen-address=127.0.0.1:{port}")
    counter = f'batchjob_job_cpu_seconds_total{{cluster="alpha",jobid="{JOB}",mode="user"}}'
    began = int(time.time())
    with contextlib.ExitStack() as stack:
        near = stack.enter_context(victoriametrics.store(tmp_path / "near"))
        far = stack.enter_context(victoriametrics.store(tmp_path / "far"))
        gate = stack.enter_context(victoriametrics.gate(tmp_path / "gate", far.url, TOKEN))
        (tmp_path / "agents-token").write_text(TOKEN)
        replaced = {
            "/etc/prometheus/prometheus.yml": str(scrape_configuration(tmp_path, port)),
            "${STATE_DIRECTORY}": str(tmp_path / "queue"),
            "http://127.0.0.1:8428": near.url,
            "https://metrics.example.org": gate,
            "/run/credentials/vmagent.service/token": str(tmp_path / "agents-token"),
        }
        stack.enter_context(victoriametrics.agent(unit_flags(replaced), tmp_path / "agent.log"))
        with exporter.running(*flags):
            until(lambda: near.query(counter), "in the first store", 30)
        with exporter.running(*flags):  # another exporter, after a restart
            restarted = time.time()
            fresh = f"timestamp({counter}) > {restarted}"
            until(lambda: far.query(fresh), "in the second store after the restart", 30)
            time.sleep(2)
        record = {"jobid": JOB, "user": OWNER, "state": "COMPLETED", "allocated_cpus": 8}
        record |= {"submit_time": began - 60, "start_time": began - 60}
        record |= {"end_time": int(time.time()), "nodes": [{"node": "localhost", "cpus": 8}]}
        time.sleep(2 + 3 + 2)  # linger, three intervals, and the second that `end_time` was cut by
        with pytest.raises(urllib.error.HTTPError, match="401"):
            victoriametrics.Store(gate).get("query", query=counter)
        assert near.series(counter) == far.series(counter)
        (labels,) = far.series(counter)  # one series, before and after the restart
        assert labels["instance"] == "localhost"
        assert labels["user"] == OWNER
        database = poll(tmp_path, gate, [record])
    engine = reader_engine(parse_url(database))
    with engine.connect() as db:
        (job,) = db.execute(sa.select(schema.job)).mappings()
        (usage,) = db.execute(sa.select(schema.job_usage)).mappings()
    engine.dispose()
    assert (job["jobid"], job["username"], usage["job_id"]) == (JOB, OWNER, job["id"])
    used = usage["user_cpu_seconds"] + usage["system_cpu_seconds"]
    assert used == pytest.approx(CPU_SECONDS, rel=1e-3)
    assert usage["dropped_series"] == 0


GUIDE = (REPOSITORY / "docs/guide/large_site.md").read_text()


def in_guide(pattern):
    (found,) = re.findall(pattern, GUIDE)
    return found


NODES = 20


@contextlib.contextmanager
def agents(folder, store, *more):
    """Two that share nodes as the guide says, each with a label of its own for the test."""
    count = in_guide(r"`(-promscrape\.cluster\.membersCount=2)`")
    number = in_guide(r"`(-promscrape\.cluster\.memberNum=)0`")
    config = folder / "scrape.yml"
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(targets.exposed(lambda: "seen 1\n"))
        nodes = [
            {"targets": [target], "labels": {"__metrics_path__": f"/{n}", "instance": f"n{n}"}}
            for n in range(NODES)
        ]
        jobs = [{"job_name": "nodes", "static_configs": nodes}]
        scrapes = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        config.write_text(yaml.safe_dump(scrapes))
        members = []
        for member in range(2):
            flags = [
                f"-promscrape.config={config}", f"-remoteWrite.url={store.url}/api/v1/write",
                f"-remoteWrite.tmpDataPath={folder}/queue{member}",
                f"-remoteWrite.label=agent={member}", count, f"{number}{member}", *more,
            ]  # fmt: skip
            running = stack.enter_context(contextlib.ExitStack())
            running.enter_context(victoriametrics.agent(flags, folder / f"{member}.log"))
            members.append(running)
        yield members


def test_agents_share_the_nodes_as_the_guide_says(tmp_path):
    with victoriametrics.store(tmp_path / "store") as store, agents(tmp_path, store):
        until(lambda: len(store.series("seen")) >= NODES, "all nodes", 60, 0.5)
        by_node = {each["instance"]: each["agent"] for each in store.series("seen")}
        assert len(store.series("seen")) == len(by_node) == NODES
        assert set(by_node.values()) == {"0", "1"}


def test_of_agents_that_scrape_every_node_one_may_go(tmp_path):
    twice = in_guide(r"`(-promscrape\.cluster\.replicationFactor=2)`")
    with victoriametrics.store(tmp_path / "store") as store, agents(tmp_path, store, twice) as both:
        until(lambda: len(store.series("seen")) == 2 * NODES, "each node twice", 60, 0.5)
        until(
            lambda: len(store.query("max by (instance) (seen)")) == NODES, "each node once", 60, 0.5
        )
        both[0].close()
        gone = time.time()
        fresh = f"count(timestamp(seen) > {gone + 2})"
        until(lambda: _number(store.query(fresh)) == NODES, "all nodes by the other", 60, 0.5)


def _number(vector):
    return float(vector[0]["value"][1]) if vector else 0.0
