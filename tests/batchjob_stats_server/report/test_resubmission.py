"""The suggested submit line, derived from a job and its earlier runs."""

import pytest

from batchjob_stats_server.report.model import ReportInput
from batchjob_stats_server.report.resubmission import resubmission, with_option

GIB = 1 << 30
JOB = {
    "state": "COMPLETED", "name": "train", "allocated_nodes": 2, "allocated_memory_bytes": 64 * GIB,
    "time_limit_seconds": 86400, "submit_line": "sbatch --mem=32G -t 1-0 run.sh --time=5",
}  # fmt: skip
NEEDS = {"memory_to_ask": 12 * GIB, "time_to_ask": 7200}


def resubmission_of(values=NEEDS, runs=3, alike="name", **job):
    row = {**JOB, **job}
    return resubmission(ReportInput(row, 0, similar=[row] * runs, alike=alike), values)


def test_options_are_replaced_and_script_arguments_kept():
    found = resubmission_of()
    assert found.line == "sbatch --mem=6144M --time=2:00:00 run.sh --time=5"
    assert (found.runs, found.saved_memory_bytes, found.saved_seconds) == (3, 52 * GIB, 79200)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sbatch run.sh", "sbatch --mem=1G run.sh"),
        ("sbatch --mem-per-cpu 4G -n 4 run.sh", "sbatch --mem=1G -n 4 run.sh"),
        ("sbatch --exclusive run.sh --mem=9G", "sbatch --mem=1G --exclusive run.sh --mem=9G"),
        ("sbatch -n4 --mem 2G --mem=3G run.sh", "sbatch -n4 --mem=1G run.sh"),
        ("sbatch  --wrap=python --mem=9G", "sbatch  --wrap=python --mem=1G"),
    ],
)
def test_option_position_in_submit_line(line, expected):
    assert with_option(line, ("--mem", "--mem-per-cpu"), "--mem=1G") == expected


@pytest.mark.parametrize(
    "why_not",
    [
        {"state": "FAILED"},
        {"runs": 2},
        {"alike": "account, partition and size"},
        {"submit_line": "qsub run.sh"},
        {"submit_line": ""},
        {"values": {"memory_to_ask": None, "time_to_ask": None}},
        {"values": {"memory_to_ask": 60 * GIB, "time_to_ask": 80000}},
    ],
)
def test_no_resubmission_without_a_reason(why_not):
    assert resubmission_of(**why_not) is None
