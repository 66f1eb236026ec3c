"""Batch scripts out of a real Slurm's accounting."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import slurm
from tests.e2e.test_stats_db_slurm import StatsDbCommand
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By user, what the poller has of jobs of several kinds."""
    if why_not := slurm.missing(cgroup=1):
        pytest.skip(why_not)
    with slurm.cluster(cgroup=1, nodes=1) as cluster:
        jobs = [
            cluster.submit("alice", "true\n# Batch Script for 1\nhostname", "--array=1-3"),
            cluster.submit("bob", f"exit 0\n{'#' * 3000}"),
        ]
        cluster.command("srun", "--ntasks=1", "true", user="carol")
        cluster.wait(*jobs)
        for job in jobs:
            cluster.sacct(job, ("State",))
        folder: Path = tmp_path_factory.mktemp("scripts")
        off = StatsDbCommand(folder, cluster)
        off("migrate")
        off("--once")
        assert off.rows("job_script") == []  # unless a site wants them
        poll = StatsDbCommand(
            folder, cluster, sacct={"batch-scripts": True, "batch-script-size": "1k"}
        )
        poll("--once")
        assert poll.rows("job_script") == []  # accounting may not have them all yet

        def asked() -> bool:
            time.sleep(5)
            poll("--once")
            return bool(poll.rows("job_script"))

        until(asked, "scripts that accounting has by now", 180)
        texts = {row["digest"]: row["script"] for row in poll.rows("batch_script")}
        users = {row["id"]: row["username"] for row in poll.rows("job")}
        found = [(users[row["job_id"]], row["digest"]) for row in poll.rows("job_script")]
        assert sorted(user for user, _ in found) == ["alice"] * 3 + ["bob", "carol"]
        yield {user: texts.get(digest, "") for user, digest in found}


def test_array_tasks_share_one_script(scripts: dict[str, str]) -> None:
    assert scripts["alice"] == "#!/bin/bash\ntrue\n# Batch Script for 1\nhostname\n"


def test_long_script_is_truncated(scripts: dict[str, str]) -> None:
    assert scripts["bob"].startswith("#!/bin/bash\nexit 0\n##")
    assert len(scripts["bob"]) == 1024


def test_interactive_job_has_no_script(scripts: dict[str, str]) -> None:
    assert scripts["carol"] == ""
