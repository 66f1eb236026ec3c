"""Mapping of the schedulers' states to one enum of job states."""

import pytest

from batchjob.schedulers.lsf.states import lsf_end_state
from batchjob.schedulers.pbs.states import pbs_end_state
from batchjob.schedulers.slurm.states import shown_word, slurm_state
from batchjob.schedulers.states import JobState


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", JobState.COMPLETED),
        ("CANCELLED by 1001", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("RE+", JobState.UNKNOWN),  # REQUEUED, RESIZING, REVOKED ...
        ("COMPLETING", JobState.RUNNING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("NOT_INVENTED_YET", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_slurm_state(word, state):
    assert slurm_state(word) == state


@pytest.mark.parametrize(
    ("words", "word", "state"),
    [
        (("RUNNING",), "RUNNING", JobState.RUNNING),
        (("PENDING", "REQUEUED"), "REQUEUED", JobState.REQUEUED),
        (("PENDING", "RESIZING"), "RESIZING", JobState.RESIZED),
        (("PENDING", "REQUEUED", "COMPLETING"), "COMPLETING", JobState.RUNNING),
        (("CANCELLED", "COMPLETING"), "COMPLETING", JobState.RUNNING),
        (("RUNNING", "STOPPED"), "STOPPED", JobState.SUSPENDED),
        (("RUNNING", "CONFIGURING", "POWER_UP_NODE"), "CONFIGURING", JobState.RUNNING),
        (("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"), "REQUEUE_HOLD", JobState.PENDING),
        (("FAILED", "LAUNCH_FAILED"), "FAILED", JobState.FAILED),
        ((), "", JobState.UNKNOWN),
    ],
)
def test_base_state_with_flags_is_the_word_that_slurm_prints(words, word, state):
    assert shown_word(words) == word
    assert slurm_state(word) == state


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, JobState.CANCELLED),
        (0, JobState.COMPLETED),
        (7, JobState.FAILED),
        (139, JobState.FAILED),
        (265, JobState.FAILED),  # killed by PBS, not by a user
        (271, JobState.FAILED),
        (267, JobState.FAILED),
        (-11, JobState.REQUEUED),
        (-27, JobState.OUT_OF_MEMORY),
        (-29, JobState.TIMEOUT),
        (-1, JobState.FAILED),
    ],
)
def test_pbs_end_state(status, state):
    assert pbs_end_state(status) == state


@pytest.mark.parametrize("status", [265, 271])
def test_pbs_job_killed_after_somebody_deleted_it_was_cancelled(status):
    assert pbs_end_state(status, deleted=True) is JobState.CANCELLED
    assert pbs_end_state(status, deleted=True, past_limit=True) is JobState.CANCELLED
    assert pbs_end_state(status, past_limit=True) is JobState.TIMEOUT


@pytest.mark.parametrize(
    ("status", "info", "state"),
    [
        (64, 0, JobState.COMPLETED),
        (192, 0, JobState.COMPLETED),
        (32, 0, JobState.FAILED),
        (32, 14, JobState.CANCELLED),
        (32, 16, JobState.OUT_OF_MEMORY),
        (32, 99, JobState.FAILED),
        (4, 0, JobState.UNKNOWN),
    ],
)
def test_lsf_end_state(status, info, state):
    assert lsf_end_state(status, info) == state


def test_live_states():
    assert {state for state in JobState if state.is_live} == {
        JobState.PENDING,
        JobState.RUNNING,
        JobState.SUSPENDED,
    }
