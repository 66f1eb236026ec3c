"""Exporter → vmagent → store and a second store behind vmauth → poller → database."""

import contextlib
import json
import re
import shlex
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
from tests.e2e.recorded_job import CPU_SECONDS, JOB, OWNER, TREE
from tests.helpers.processes import free_ports, run
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy" / "victoriametrics"
TOKEN = "remote-store-token"


@pytest.fixture(autouse=True)
def require_programs():
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)


def unit_flags(replacements):
    """vmagent's flags from its unit and default file, with these replacements."""
    unit = (DEPLOY / "vmagent.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    default = (DEPLOY / "vmagent.default").read_text()
    (elsewhere,) = re.findall(r'^# ELSEWHERE="(.*)"$', default, re.MULTILINE)
    text = command.replace("\\\n", " ").replace("$ELSEWHERE", elsewhere)
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new)
    return [flag for flag in shlex.split(text) if "httpListenAddr" not in flag]


def write_scrape_configuration(folder, port):
    """Write the repository's prometheus.yml with other paths and ports and a scrape each second."""
    text = (REPOSITORY / "prometheus/prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/batchjob", str(folder)).replace(":10910", f":{port}")
    config = folder / "prometheus.yml"
    config.write_text(text.replace("scrape_interval: 30s", "scrape_interval: 1s"))
    targets = [{"targets": ["localhost"], "labels": {"cluster": "alpha"}}]
    (folder / "nodes-alpha.json").write_text(json.dumps(targets))
    return config


def run_poller(folder, url, records):
    """Run one poll of these job records with measurements from `url`; the database's URL."""
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
        process = run(argv, cwd=REPOSITORY)
        assert process.returncode == 0, process.stderr
    return database


def test_job_usage_reaches_database_through_both_stores(unpacked, as_recorded, tmp_path):
    (port,) = free_ports(1)
    flags = recorded_job.exporter_flags(unpacked(TREE))
    flags = (*flags, f"--web.listen-address=127.0.0.1:{port}")
    counter = f'batchjob_job_cpu_seconds_total{{cluster="alpha",jobid="{JOB}",mode="user"}}'
    start_time = int(time.time())
    with contextlib.ExitStack() as stack:
        local_store = stack.enter_context(victoriametrics.store(tmp_path / "near"))
        remote_store = stack.enter_context(victoriametrics.store(tmp_path / "far"))
        auth_proxy = stack.enter_context(
            victoriametrics.auth_proxy(tmp_path / "gate", remote_store.url, TOKEN)
        )
        (tmp_path / "agents-token").write_text(TOKEN)
        replacements = {
            "/etc/prometheus/prometheus.yml": str(write_scrape_configuration(tmp_path, port)),
            "${STATE_DIRECTORY}": str(tmp_path / "queue"),
            "http://127.0.0.1:8428": local_store.url,
            "https://metrics.example.org": auth_proxy,
            "/run/credentials/vmagent.service/token": str(tmp_path / "agents-token"),
        }
        stack.enter_context(victoriametrics.agent(unit_flags(replacements), tmp_path / "agent.log"))
        with exporter.running(*flags):
            until(lambda: local_store.query(counter), "in the first store", 30)
        with exporter.running(*flags):  # a new exporter, as after a restart
            restarted = time.time()
            fresh_samples = f"timestamp({counter}) > {restarted}"
            until(
                lambda: remote_store.query(fresh_samples),
                "in the second store after the restart",
                30,
            )
            time.sleep(2)
        record = {"jobid": JOB, "user": OWNER, "state": "COMPLETED", "allocated_cpus": 8}
        record |= {"submit_time": start_time - 60, "start_time": start_time - 60}
        record |= {"end_time": int(time.time()), "nodes": [{"node": "localhost", "cpus": 8}]}
        time.sleep(2 + 3 + 2)  # linger, three intervals, and the second that `end_time` was cut by
        with pytest.raises(urllib.error.HTTPError, match="401"):
            victoriametrics.VictoriaMetrics(auth_proxy).get("query", query=counter)
        assert local_store.series(counter) == remote_store.series(counter)
        # The series is the same before and after the restart.
        (labels,) = remote_store.series(counter)
        assert labels["instance"] == "localhost"
        assert labels["user"] == OWNER
        database = run_poller(tmp_path, auth_proxy, [record])
    engine = reader_engine(parse_url(database))
    with engine.connect() as db:
        (job,) = db.execute(sa.select(schema.job)).mappings()
        (usage,) = db.execute(sa.select(schema.job_usage)).mappings()
    engine.dispose()
    assert (job["jobid"], job["username"], usage["job_id"]) == (JOB, OWNER, job["id"])
    cpu_seconds = usage["user_cpu_seconds"] + usage["system_cpu_seconds"]
    assert cpu_seconds == pytest.approx(CPU_SECONDS, rel=1e-3)
    assert usage["dropped_series"] == 0


GUIDE = (REPOSITORY / "docs/guide/large_site.md").read_text()


def documented_flag(pattern):
    (found,) = re.findall(pattern, GUIDE)
    return found


NODES = 20


@contextlib.contextmanager
def two_agents(folder, store, *extra_flags):
    """Run two agents that share the nodes as documented; a label tells which one scraped."""
    member_count_flag = documented_flag(r"`(-promscrape\.cluster\.membersCount=2)`")
    member_number_flag = documented_flag(r"`(-promscrape\.cluster\.memberNum=)0`")
    config = folder / "scrape.yml"
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(targets.serve_metrics(lambda: "seen 1\n"))
        nodes = [
            {"targets": [target], "labels": {"__metrics_path__": f"/{n}", "instance": f"n{n}"}}
            for n in range(NODES)
        ]
        jobs = [{"job_name": "nodes", "static_configs": nodes}]
        scrapes = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        config.write_text(yaml.safe_dump(scrapes))
        agent_contexts = []
        for member in range(2):
            flags = [
                f"-promscrape.config={config}", f"-remoteWrite.url={store.url}/api/v1/write",
                f"-remoteWrite.tmpDataPath={folder}/queue{member}",
                f"-remoteWrite.label=agent={member}", member_count_flag,
                f"{member_number_flag}{member}", *extra_flags,
            ]  # fmt: skip
            agent_context = stack.enter_context(contextlib.ExitStack())
            agent_context.enter_context(victoriametrics.agent(flags, folder / f"{member}.log"))
            agent_contexts.append(agent_context)
        yield agent_contexts


def test_agents_share_nodes_as_documented(tmp_path):
    with victoriametrics.store(tmp_path / "store") as store, two_agents(tmp_path, store):
        until(lambda: len(store.series("seen")) >= NODES, "all nodes", 60, 0.5)
        agent_by_node = {each["instance"]: each["agent"] for each in store.series("seen")}
        assert len(store.series("seen")) == len(agent_by_node) == NODES
        assert set(agent_by_node.values()) == {"0", "1"}


def test_replicating_agents_tolerate_loss_of_one_agent(tmp_path):
    replication_flag = documented_flag(r"`(-promscrape\.cluster\.replicationFactor=2)`")
    with (
        victoriametrics.store(tmp_path / "store") as store,
        two_agents(tmp_path, store, replication_flag) as running_agents,
    ):
        until(lambda: len(store.series("seen")) == 2 * NODES, "each node twice", 60, 0.5)
        until(
            lambda: len(store.query("max by (instance) (seen)")) == NODES, "each node once", 60, 0.5
        )
        running_agents[0].close()
        stopped = time.time()
        fresh_samples = f"count(timestamp(seen) > {stopped + 2})"
        until(
            lambda: _first_value(store.query(fresh_samples)) == NODES,
            "all nodes by the other",
            60,
            0.5,
        )


def _first_value(vector):
    return float(vector[0]["value"][1]) if vector else 0.0
