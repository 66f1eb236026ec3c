"""`batchjob doctor`: output and exit status."""

import pytest

from batchjob_cli.doctor.command import as_text
from batchjob_cli.doctor.finding import Finding
from batchjob_cli.main import main


def path_flags(host):
    return [
        f"--path.procfs={host.procfs}",
        f"--path.sysfs={host.sysfs}",
        f"--path.cgroupfs={host.cgroupfs}",
        f"--path.dev={host.dev}",
        "--web.listen-address=127.0.0.1:0",
    ]


def test_node_with_jobs_exits_with_0(tree, capsys):
    assert main(["doctor", *path_flags(tree("slurm-24.11-v2-r3-b"))]) == 0
    assert "Jobs can be seen on this node" in capsys.readouterr().out


def test_node_without_jobs_exits_with_1(machine, capsys):
    assert main(["doctor", *path_flags(machine())]) == 1
    assert "No jobs can be seen on this node" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["docter"], "batchjob: unknown command docter; did you mean doctor?"),
        (["doctor", "--jsn"], "batchjob: unknown flag --jsn"),
        (["doctor", "--path.cgroup=/x"], "batchjob: unknown flag --path.cgroup; did you mean"),
        (["doctor", "now"], "batchjob: unexpected argument 'now'"),
        (["doctor", "--config.file=/none"], "batchjob: /none: No such file or directory"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, complaint, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(complaint)
    assert error.count("\n") == 1


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("batchjob ")
    with pytest.raises(SystemExit) as exited:
        main(["doctor", "--help"])
    assert exited.value.code == 0
    assert "Exit status" in capsys.readouterr().out


def test_text_report():
    answers = {
        "cgroups": {"version": Finding("ok", "version 2 only", "unused")},
        "schedulers": {},
        "energy": {"rapl": Finding("missing", "no zones", "modprobe intel_rapl_msr")},
    }
    assert as_text(answers, True) == (
        "cgroups\n"
        "  ok       version  version 2 only\n"
        "\n"
        "energy\n"
        "  missing  rapl     no zones\n"
        "                    -> modprobe intel_rapl_msr\n"
        "\n"
        "Jobs can be seen on this node (1 ok, 0 warning, 1 missing).\n"
    )


def test_last_line_fits_into_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr("batchjob_cli.doctor.command.terminal_width", lambda: 60)
    answers = {"energy": {f"meter {number}": Finding("ok", "read") for number in range(10)}}
    assert as_text(answers, False).splitlines()[-2:] == [
        "No jobs can be seen on this node (10 ok, 0 warning, 0",
        "missing).",
    ]
