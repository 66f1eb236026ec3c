"""The suggested submit line: it holds what the advice of the report asks for."""

import pytest

from batchjob_stats_server.report.forms import as_text
from tests.batchjob_stats_server.report.test_advice import KILLED, cpu_usage, gpu_usage, memory_peak
from tests.batchjob_stats_server.report.test_report import GIB, UNMEASURED, report_of, row


def again(**job):
    return report_of(
        **{"submit_line": "sbatch --mem=16G -t 3:00:00 -c 8 run.sh", **job}
    ).resubmission


def test_line_has_the_memory_of_the_highest_peak():
    found = again(**memory_peak(3), similar=[row(**memory_peak(4))] * 5)
    assert found.line == "sbatch --mem=5120M -t 3:00:00 -c 8 run.sh"
    assert (found.runs, found.saved_memory_bytes) == (5, 11 * GIB)
    assert found.savings(7200) == "11 GiB for 2 h"
    assert found.basis == "The highest need of this and 5 earlier runs plus 20 %, rounded up."
    alone = again(**memory_peak(3))
    assert alone.basis == "The highest need of this run alone plus 20 %, rounded up."


def test_line_is_whole_in_text_so_that_it_can_be_copied():
    line = "sbatch --partition=gpu --mem=16G --gpus-per-node=4 --comment=" + "-".join("x" * 60)
    text = as_text(report_of(**memory_peak(3), submit_line=f"{line} run.sh"))
    assert f"  {line.replace('16G', '3840M')} run.sh\n" in text


def test_line_has_fewer_cpus_and_gpus():
    found = again(**cpu_usage(3))
    assert (found.line, found.saved_cpus) == ("sbatch --mem=16384M -t 3:00:00 -c 5 run.sh", 3)
    gpus = gpu_usage(0.0, 0.9, 0.0, 0.0, usage_energy_gpu_idle_joules=7.2e6)
    found = again(**gpus, submit_line="sbatch --gpus-per-node=4 run.sh")
    assert found.line == "sbatch --mem=16384M --gpus-per-node=1 run.sh"
    assert found.savings(19800) == "3 GPUs for 5 h 30 min, 1.5 kWh"


def test_line_after_a_kill_and_after_a_time_out():
    killed = again(state="OUT_OF_MEMORY", runs_of_name=[KILLED])
    assert killed.line == "sbatch --mem=32768M -t 3:00:00 -c 8 run.sh"
    assert killed.savings(7200) == ""
    assert "twice what was too little" in killed.basis
    assert again(state="OUT_OF_MEMORY", largest_node_bytes=16 * GIB) is None
    assert again(state="TIMEOUT", time_limit_seconds=10_800).line == (
        "sbatch --mem=16G -t 6:00:00 -c 8 run.sh"
    )


def test_line_after_a_time_out_asks_for_no_more_time_than_the_partition_allows():
    def line(hours):
        allowed = {"longest_limit_seconds": hours * 3600}
        found = again(state="TIMEOUT", time_limit_seconds=10_800, **allowed)
        return found and found.line

    assert line(4) == "sbatch --mem=16G -t 4:00:00 -c 8 run.sh"
    assert line(24) == "sbatch --mem=16G -t 6:00:00 -c 8 run.sh"
    assert line(3) is None


def test_line_near_the_limit_after_kills_has_more_memory():
    found = again(**memory_peak(15.8), runs_of_name=[KILLED] * 9)
    assert found.line == "sbatch --mem=20480M -t 3:00:00 -c 8 run.sh"


def test_own_script_tells_how_resources_were_requested():
    script = "#!/bin/sh\n#SBATCH --mem-per-cpu=2G\n#SBATCH --cpus-per-task=8\n./a\n"
    found = again(**cpu_usage(3), submit_line="sbatch run.sh", script=script)
    assert found.line == "sbatch --cpus-per-task=5 --mem-per-cpu=3277M run.sh"


@pytest.mark.parametrize(
    "job",
    [{}, UNMEASURED, {**memory_peak(3), "state": "FAILED"}, {**memory_peak(3), "source": "runs"}],
)
def test_no_line_without_advice_or_submit_options(job):
    assert again(**job) is None
