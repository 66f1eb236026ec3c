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
from batchjob_stats_db.database.engine import parse, reader
from tests.e2e import exporter, targets, victoriametrics
from tests.e2e.processes import free_ports, until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy" / "victoriametrics"
TOKEN = "a-token-of-its-own"
# Job 1 of the recorded machine: its cgroup's cpu.stat, and the uid of its processes.
TREE, JOB, OWNER, CPU_SECONDS = "slurm-22.05-v2-r1-a", "1", "2001", 120.531694


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
    host = unpacked(TREE)
    (port,) = free_ports(1)
    flags = (
        "--collector.disable-defaults", "--collector.jobs", f"--path.procfs={host.procfs}",
        f"--path.sysfs={host.sysfs}", f"--path.cgroupfs={host.cgroupfs}",
        f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
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
    engine = reader(parse(database))
    with engine.connect() as db:
        (job,) = db.execute(sa.select(schema.job)).mappings()
        (usage,) = db.execute(sa.select(schema.job_usage)).mappings()
    engine.dispose()
    assert (job["jobid"], job["username"], usage["job_id"]) == (JOB, OWNER, job["id"])
    used = usage["user_cpu_seconds"] + usage["system_cpu_seconds"]
    assert used == pytest.approx(CPU_SECONDS, rel=1e-3)
    assert usage["dropped_series"] == 0


def test_agents_share_the_nodes_as_the_guide_says(tmp_path):
    guide = (REPOSITORY / "docs/guide/large_site.md").read_text()
    (count,) = re.findall(r"`(-promscrape\.cluster\.membersCount=2)`", guide)
    (first,) = re.findall(r"`(-promscrape\.cluster\.memberNum=)0`", guide)
    config = tmp_path / "scrape.yml"
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(victoriametrics.store(tmp_path / "store"))
        target = stack.enter_context(targets.exposed(lambda: "seen 1\n"))
        nodes = [
            {"targets": [target], "labels": {"__metrics_path__": f"/{n}", "instance": f"n{n}"}}
            for n in range(20)
        ]
        jobs = [{"job_name": "nodes", "static_configs": nodes}]
        scrapes = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        config.write_text(yaml.safe_dump(scrapes))
        for member in range(2):
            flags = [
                f"-promscrape.config={config}", f"-remoteWrite.url={store.url}/api/v1/write",
                f"-remoteWrite.tmpDataPath={tmp_path}/queue{member}",
                f"-remoteWrite.label=agent={member}", count, f"{first}{member}",
            ]  # fmt: skip
            stack.enter_context(victoriametrics.agent(flags, tmp_path / f"{member}.log"))
        until(lambda: len(store.series("seen")) >= len(nodes), "all nodes", 60, 0.5)
        by_node = {each["instance"]: each["agent"] for each in store.series("seen")}
        assert len(store.series("seen")) == len(by_node) == len(nodes)
        assert set(by_node.values()) == {"0", "1"}
