"""Job states: one enum for all schedulers; each scheduler's `states` has its own words for them."""

from enum import StrEnum


class JobState(StrEnum):
    """What became of a job, or where it stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    PREEMPTED = "PREEMPTED"
    DEADLINE = "DEADLINE"
    REQUEUED = "REQUEUED"  # this run ended; the job runs again under a record of its own
    RESIZED = "RESIZED"  # this record ended when the job changed its size; another goes on
    MOVED = "MOVED"  # handed to another cluster, which accounts for it
    VANISHED = "VANISHED"  # unfinished for us, unknown to its scheduler: its end was never seen
    UNKNOWN = "UNKNOWN"  # a word no table has

    @property
    def live(self) -> bool:
        """Whether more is to come: the job waits, runs or is suspended."""
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)
