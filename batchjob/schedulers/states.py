"""Job states: one enum for all schedulers; each scheduler's `states` maps its names to them."""

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job, the same for all schedulers."""

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
    REQUEUED = "REQUEUED"  # this run ended; the job runs again with a separate record
    # This record ended when the job was resized; the job continues in another record.
    RESIZED = "RESIZED"
    MOVED = "MOVED"  # moved to another cluster, which accounts for it
    # Unfinished in the database, unknown to its scheduler: the end was never seen.
    VANISHED = "VANISHED"
    UNKNOWN = "UNKNOWN"  # a state that is in no table

    @property
    def is_live(self) -> bool:
        """Whether the job has not ended: it waits, runs or is suspended."""
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)
