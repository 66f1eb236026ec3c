"""Runs of this machine, and what commands print of them."""

import os
import time
import uuid

from batchjob.local_runs import record
from batchjob.schedulers.states import JobState


def finished_run(name, state=JobState.COMPLETED, **more):
    """A run that took a minute."""
    now = int(time.time())
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=1000,
        submit_time=now - 90, start_time=now - 90, end_time=now - 30, state=state, name=name,
        supervisor=record.SupervisorProcess(1, 1, "gone"),
        exit_code=0 if state == "COMPLETED" else 1,
        user_cpu_seconds=50.0, system_cpu_seconds=4.0, peak_memory_bytes=3 << 30,
        allocated_cpus=1, **more,
    )  # fmt: skip


def command_output(capsys, command, *arguments):
    assert command.run(list(arguments)) == 0
    return capsys.readouterr().out
