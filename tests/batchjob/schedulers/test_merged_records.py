"""What a later record of a run takes over from an earlier one."""

import pytest

from batchjob.schedulers.records import JobRecord, NodeShare, merge_records
from batchjob.schedulers.states import JobState

WAITING = JobRecord("c1", "7.srv", 100, JobState.PENDING, "H", "qstat", reason="Job held", name="j")
RUNNING = JobRecord(
    "c1", "7.srv", 100, JobState.RUNNING, "R", "qstat", start_time=150, allocated_cpus=4,
    node_list="n1/0", nodes=(NodeShare("n1", 4),),
)  # fmt: skip


def test_job_that_waits_again_has_no_start_and_holds_nothing():
    again = merge_records(RUNNING, WAITING)
    assert (again.state, again.start_time, again.allocated_cpus) == (JobState.PENDING, None, None)
    assert (again.nodes, again.node_list, again.name) == ((), "", "j")


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COMPLETED, JobState.CANCELLED])
def test_reason_for_waiting_ends_with_the_waiting(state):
    later = RUNNING._replace(state=state)
    assert (merge_records(WAITING, later).reason, merge_records(WAITING, later).name) == ("", "j")
    assert merge_records(WAITING, later._replace(reason="x")).reason == "x"
