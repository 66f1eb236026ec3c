"""Tools that sites use, unmodified, on a real Slurm whose jobs' comments the poller has written.

reportseff and job_defense_shield are installed by `.ci/run`. The Slurm of Debian 12 (22.05) stores
comments in lower case, so a stand-in for the sacctmgr of 23.02 writes them into the database of
slurmdbd.
"""

import contextlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.e2e import exporter, prometheus, slurm
from tests.e2e.test_stats_db_slurm import LINGER, SCRAPE_INTERVAL, StatsDbCommand
from tests.e2e.workload import command

pytestmark = pytest.mark.e2e

SECONDS = 70  # jobstats says nothing of jobs below a minute
REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "prometheus/other_names/jobstats.yml"
SACCTMGR = """#!/bin/bash
if [ "$1" = --version ]; then echo "slurm 23.02.0"; exit; fi
if [ "$2 $3" != "update job" ]; then exec sacctmgr "$@"; fi
job=${{5#jobid=}} comment=${{7#AdminComment=}}
exec mariadb --socket={root}/mysql/socket --user=slurm --password=slurm slurm_acct_db \\
    --execute="UPDATE {cluster}_job_table SET admin_comment='$comment' WHERE id_job=$job"
"""


class Site(NamedTuple):
    """The cluster, its time series database, and the ids of jobs by what they did."""

    cluster: slurm.Cluster
    tsdb: prometheus.Server
    jobs: dict[str, str]
    refused: str  # what the poller says with Slurm's own sacctmgr
    comments: dict[str, str]  # by raw id, as sacct has them

    def run_inside(self, *argv: str, **environ: str) -> str:
        """The output of a tool that calls Slurm's commands."""
        process = subprocess.run(
            self.cluster.inside(*argv), env={**self.cluster.environ, **environ},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A busy and an idle job, polled to their final figures."""
    why_not = slurm.missing(cgroup=1) or prometheus.missing()
    if why_not:
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("site_tools")
    with contextlib.ExitStack() as stack:
        epilog = "TaskEpilog={root}/epilog.sh\n"
        cluster = stack.enter_context(slurm.cluster(cgroup=1, conf=epilog))
        sacctmgr = folder / "sacctmgr"
        sacctmgr.write_text(SACCTMGR.format(root=cluster.root, cluster=cluster.name))
        sacctmgr.chmod(0o755)
        target = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults", "--collector.jobs", inside=cluster.inside()
            )
        )
        _write_epilog(cluster, target.address)
        interval = f"{SCRAPE_INTERVAL}s"
        relabel = [{"target_label": "cluster", "replacement": cluster.name}]
        config = prometheus.scrape_config(
            [target.address], interval, "a", {"relabel_configs": relabel}
        )
        config["global"]["evaluation_interval"] = interval
        tsdb = stack.enter_context(prometheus.serving(config | {"rule_files": [str(RULES)]}))
        jobs = {
            "busy": cluster.submit("alice", command(cpu=SECONDS)),
            "idle": cluster.submit("bob", f"sleep {SECONDS}"),
            "commented": cluster.submit("alice", f"sleep {SECONDS}"),
        }
        own = StatsDbCommand(folder, cluster, tsdb.url, {"admin-comments": True}, name=cluster.name)
        own("migrate")
        cluster.wait(*jobs.values(), timeout=300)
        for job in jobs.values():
            cluster.sacct(job, ("State",))
        cluster.command(
            str(sacctmgr), "-i", "update", "job", "where", f"jobid={jobs['commented']}",
            "set", "AdminComment=JS1:None",
        )  # fmt: skip
        time.sleep(LINGER + 3 * SCRAPE_INTERVAL + 1)
        refused = own.output("--once", status=1)
        before = _comments(cluster)
        assert set(before.values()) == {"", "JS1:None"}
        StatsDbCommand(
            folder, cluster, tsdb.url, {"admin-comments": True, "sacctmgr": str(sacctmgr)},
            name=cluster.name,
        )("--once")  # fmt: skip
        yield Site(cluster, tsdb, jobs, refused, _comments(cluster))


def _write_epilog(cluster, exporter_address):
    """The shipped epilog, with a command `batchjob` that users of the cluster can run."""
    for name in ("batchjob", "batchjob_cli"):
        shutil.copytree(REPOSITORY / name, cluster.root / "lib" / name)
    shutil.copy(REPOSITORY / "deploy/slurm/report_epilog.sh", cluster.root / "report_epilog.sh")
    scripts = {
        "epilog.sh": "export BATCHJOB={root}/batchjob; exec {root}/report_epilog.sh",
        "batchjob": "cd {root}/lib; exec /usr/bin/python3 -m batchjob_cli $@ --exporter={url}",
    }
    for name, line in scripts.items():
        path = cluster.root / name
        text = line.format(root=cluster.root, url=f"http://{exporter_address}")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def _comments(cluster):
    rows = cluster.command("sacct", "-aXnP", "-o", "JobIDRaw,AdminComment").splitlines()
    return dict(row.split("|", 1) for row in rows)


def tool(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"not installed: {name}")
    return path


def test_summary_is_in_the_comments_of_jobs_that_have_none(site):
    assert site.comments[site.jobs["busy"]].startswith("JS1:")
    assert site.comments[site.jobs["idle"]].startswith("JS1:")
    assert site.comments[site.jobs["commented"]] == "JS1:None"


def test_nothing_is_written_by_a_sacctmgr_that_destroys_comments(site):
    assert "before 23.02, sacctmgr stores comments in lower case" in site.refused


def test_reportseff_shows_the_measured_efficiency(site):
    out = site.run_inside(
        tool("reportseff"), "--no-color", "--parsable", "--format=JobID,CPUEff,MemEff",
        site.jobs["busy"], site.jobs["idle"],
    )  # fmt: skip
    rows = {row.split("|")[0]: row.split("|")[1:] for row in out.strip().splitlines()[1:]}
    busy, idle = rows[site.jobs["busy"]], rows[site.jobs["idle"]]
    assert float(busy[0]) > 5  # on a machine with other work
    assert idle[0] == "---"  # which it writes for zero
    assert all(0 < float(memory) < 100 for _, memory in (busy, idle))


def test_job_defense_shield_judges_by_the_summaries(site, tmp_path):
    """Its report of low CPU efficiency has who used little of many CPUs, and not the others."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({
        "violation-logs-path": str(tmp_path / "violations"),
        "email-files-path": str(tmp_path), "sender": "root@localhost", "reply-to": "root@localhost",
        "email-domain-name": "@localhost",
        "low-cpu-efficiency-1": {
            "cluster": site.cluster.name, "partitions": ["*"], "eff_thres_pct": 5,
            "eff_target_pct": 90, "proportion_thres_pct": 0, "absolute_thres_hours": 0,
            "num_top_users": 5, "min_run_time": 1,
        },
    }))  # fmt: skip
    out = site.run_inside(
        tool("job_defense_shield"), f"--config-file={config}", "--low-cpu-efficiency",
        "--days=1", HOME=str(tmp_path),
    )  # fmt: skip
    listed = [line.split()[1] for line in out.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert listed == ["bob"], out


def test_queries_that_jobstats_was_seen_to_send_have_answers(site):
    """jobstats 1.0, jobstats.py; the program itself is in no registry."""
    job = f"cluster='{site.cluster.name}',jobid='{site.jobs['busy']}',step='',task=''"
    rss, shmem = f"cgroup_memory_rss_bytes{{{job}}}", f"cgroup_memory_shmem_bytes{{{job}}}"
    queries = {
        "total_memory": f"max_over_time(cgroup_memory_total_bytes{{{job}}}[600s])",
        "used_memory": f"max_over_time((({rss}+{shmem}) or 1*{rss})[600s:])",
        "total_time": f"max_over_time(cgroup_cpu_total_seconds{{{job}}}[600s])",
        "cpus": f"max_over_time(cgroup_cpus{{{job}}}[600s])",
    }
    found = {name: site.tsdb.query(query) for name, query in queries.items()}
    assert all(len(answer) == 1 for answer in found.values()), found
    assert found["total_time"][0].value > SECONDS / 3
    assert found["cpus"][0].labels["instance"].endswith(":9306")


def test_output_of_a_job_ends_with_what_its_node_has_measured(site):
    job = site.jobs["busy"]
    lines = (site.cluster.home("alice") / f"slurm-{job}.out").read_text().splitlines()
    assert sum(line.startswith(f"batchjob: job {job} on ") for line in lines) == 1
    assert any(line.startswith("  CPU time   0:0") for line in lines), lines
    assert any(line.startswith("  Memory     peak ") for line in lines), lines
