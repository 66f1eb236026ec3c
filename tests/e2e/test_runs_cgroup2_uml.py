"""`batchjob run` on cgroup v2 with all controllers, in User Mode Linux."""

from typing import Any

import pytest

from tests.e2e import exporter, guest_runs, uml

pytestmark = pytest.mark.e2e

MIB = 1 << 20


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Boot, run all jobs once, power off."""
    if why_not := uml.missing():
        pytest.skip(why_not)
    return uml.run("tests.e2e.guest_runs", tmp_path_factory.mktemp("uml"))


def test_run_as_root_has_own_top_level_cgroup(report: Any) -> None:
    result = report["plain"]
    record = result["record"]
    assert result["stdout"] == f"0::/batchjob.slice/run-{record['jobid']}\n"
    assert (result["status"], record["state"]) == (3, "FAILED")
    cpu = record["user_cpu_seconds"] + record["system_cpu_seconds"]
    assert 0.45 <= cpu < 3
    assert record["peak_memory_bytes"] > MIB


def test_cgroups_are_removed(report: Any) -> None:
    for name, each in report.items():
        if name not in ("seen", "helper"):
            assert (each[3] if name == "stopped" else each["left"]) == [], name


def test_memory_limit(report: Any) -> None:
    for name in ("memory", "alice"):
        record = report[name]["record"]
        assert (record["state"], report[name]["status"]) == ("OUT_OF_MEMORY", 137), report[name]
        assert record["peak_memory_bytes"] <= 80 * MIB


def test_cpu_limit(report: Any) -> None:
    assert report["cpus"]["seconds"] > 1.5
    assert "throttled" in report["cpus"]["stderr"]


def test_io_limit(report: Any) -> None:
    assert report["io"]["status"] == 0, report["io"]["stderr"]
    assert report["io"]["seconds"] > 1.3
    assert "written" in report["io"]["stderr"]


def test_leftover_processes_are_ended(report: Any) -> None:
    assert "outlived the command" in report["left_behind"]["stderr"]


def test_user_without_delegated_cgroup(report: Any) -> None:
    without_limit, refused = report["alice_without"], report["alice_refused"]
    assert (without_limit["status"], without_limit["record"]["state"]) == (0, "COMPLETED"), (
        without_limit
    )
    assert "batchjob.slice" not in without_limit["stdout"]
    assert without_limit["record"]["uid"] == guest_runs.ALICE
    assert refused["status"] == 125
    assert "--memory: cannot create a cgroup: " in refused["stderr"]
    left_out = report["alice_limited"]
    assert (left_out["status"], left_out["record"]["state"]) == (0, "COMPLETED"), left_out
    assert "--memory" in left_out["stderr"]


ALICE_CGROUP = f"/user.slice/user-{guest_runs.ALICE}.slice/user@{guest_runs.ALICE}.service"


def test_user_with_delegated_cgroup(report: Any) -> None:
    jobid = report["alice"]["record"]["jobid"]
    assert report["alice"]["stdout"] == f"0::{ALICE_CGROUP}/batchjob.slice/run-{jobid}\n"


def test_exporter_reports_run_with_owner(report: Any) -> None:
    scrape = exporter.parse(report["seen"]["text"], 0.0)
    [(info, _)] = scrape.series("batchjob_job_info", jobid=report["seen"]["jobid"])
    assert (info["manager"], info["uid"]) == ("local", str(guest_runs.ALICE))


def test_stop(report: Any) -> None:
    status, stdout, stderr, _ = report["stopped"]
    assert (status, stderr) == (0, "")
    assert "stopped" in stdout


def test_helper_names_what_the_kernel_lacks(report: Any) -> None:
    """Debian's kernel for User Mode Linux (6.1) has BPF, but does not describe its types."""
    missing = "the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)"
    assert report["helper"] == {"devices": "", "network": missing, "process-io": missing}


@pytest.fixture(scope="module")
def user_manager(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Any:
    """As `report`, with systemd: alice has no delegated cgroup, but a systemd of her own."""
    if not long_form:
        pytest.skip("only with --long: systemd boots for minutes on a busy machine")
    if why_not := uml.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("systemd")
    return uml.run("tests.e2e.guest_user_manager", folder, has_systemd=True)


def test_user_with_own_systemd_has_limits(user_manager: Any) -> None:
    memory, cpus = user_manager["memory"], user_manager["cpus"]
    jobid = memory["record"]["jobid"]
    assert memory["stdout"] == f"0::{ALICE_CGROUP}/batchjob.slice/run-{jobid}\n", memory
    assert (memory["record"]["state"], memory["status"]) == ("OUT_OF_MEMORY", 137)
    assert memory["record"]["peak_memory_bytes"] <= 80 * MIB
    assert (cpus["status"], cpus["record"]["state"]) == (0, "COMPLETED"), cpus
    assert cpus["seconds"] > 1.5
    assert [each["left"] for each in (memory, cpus)] == [[], []]


def test_scope_changes_nothing_for_the_command(user_manager: Any) -> None:
    status = user_manager["status"]
    assert status["status"] == 7
    folder, *environment = status["stdout"].splitlines()
    assert folder == "/tmp"
    assert not [each for each in environment if each.startswith("BATCHJOB_ENTERED")]


@pytest.mark.parametrize("name", ["without", "unreachable", "detached"])
def test_run_without_user_systemd_leaves_limits_out(user_manager: Any, name: str) -> None:
    """A detached run stays outside as well: her systemd ends when she logs out."""
    left_out = user_manager[name]
    assert left_out["status"] == 0, left_out
    assert "--memory" in left_out["stderr"]
    assert "batchjob.slice" not in left_out["stdout"]
