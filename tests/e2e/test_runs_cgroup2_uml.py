"""`batchjob run` on cgroup v2 with all controllers, inside User Mode Linux."""

from typing import Any

import pytest

from tests.e2e import exporter, guest_runs, uml

pytestmark = pytest.mark.e2e

MIB = 1 << 20


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Boot, run all once, power off."""
    if why_not := uml.missing():
        pytest.skip(why_not)
    return uml.run("tests.e2e.guest_runs", tmp_path_factory.mktemp("uml"))


def test_a_cgroup_of_its_own_at_the_top(report: Any) -> None:
    plain = report["plain"]
    record = plain["record"]
    assert plain["stdout"] == f"0::/batchjob.slice/run-{record['jobid']}\n"
    assert (plain["status"], record["state"]) == (3, "FAILED")
    cpu = record["user_cpu_seconds"] + record["system_cpu_seconds"]
    assert 0.45 <= cpu < 3
    assert record["peak_memory_bytes"] > MIB


def test_no_cgroup_is_left(report: Any) -> None:
    for name, each in report.items():
        if name != "seen":
            assert (each[3] if name == "stopped" else each["left"]) == [], name


def test_memory(report: Any) -> None:
    for name in ("memory", "alice"):
        record = report[name]["record"]
        assert (record["state"], report[name]["status"]) == ("OUT_OF_MEMORY", 137), report[name]
        assert record["peak_memory_bytes"] <= 80 * MIB


def test_cpus(report: Any) -> None:
    assert report["cpus"]["seconds"] > 1.5
    assert "throttled" in report["cpus"]["stderr"]


def test_io(report: Any) -> None:
    assert report["io"]["status"] == 0, report["io"]["stderr"]
    assert report["io"]["seconds"] > 1.3
    assert "written" in report["io"]["stderr"]


def test_what_is_left_behind_is_ended(report: Any) -> None:
    assert "left processes behind" in report["left_behind"]["stderr"]


def test_a_user_without_a_cgroup(report: Any) -> None:
    without, refused = report["alice_without"], report["alice_refused"]
    assert (without["status"], without["record"]["state"]) == (0, "COMPLETED"), without
    assert "batchjob.slice" not in without["stdout"]
    assert without["record"]["uid"] == guest_runs.ALICE
    assert refused["status"] == 125
    assert "--memory: cannot create a cgroup: " in refused["stderr"]


HERS = f"/user.slice/user-{guest_runs.ALICE}.slice/user@{guest_runs.ALICE}.service"


def test_a_user_in_a_cgroup_handed_to_him(report: Any) -> None:
    jobid = report["alice"]["record"]["jobid"]
    assert report["alice"]["stdout"] == f"0::{HERS}/batchjob.slice/run-{jobid}\n"


def test_the_exporter_sees_it_with_its_owner(report: Any) -> None:
    scrape = exporter.parse(report["seen"]["text"], 0.0)
    [(info, _)] = scrape.series("batchjob_job_info", jobid=report["seen"]["jobid"])
    assert (info["manager"], info["uid"]) == ("local", str(guest_runs.ALICE))


def test_stop(report: Any) -> None:
    status, said, complaints, _ = report["stopped"]
    assert (status, complaints) == (0, "")
    assert "stopped" in said
