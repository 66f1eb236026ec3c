"""A recorder killed at any instant: every sample that was written can be read.

The number of kills is 10; BATCHJOB_KILLS=100 is the long run.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from batchjob_stats_db.samples.replay import Replay
from tests.batchjob_stats_db.samples.endless_recorder import JOBS, T

KILLS = int(os.environ.get("BATCHJOB_KILLS", "10"))
ROOT = Path(__file__).parents[3]


def passes_of(samples, jobid):
    """Numbers of the passes whose sample can be read."""
    replay = Replay(samples, jobid)
    try:
        found = [round((step.sample.at - T) / 5) for step in replay.read()]
        assert not replay.damages
    finally:
        replay.close()
    return found


def killed(samples, first, seconds):
    """Run the recorder, kill it, and return the last pass that it said was done."""
    argv = [
        sys.executable,
        "-m",
        "tests.batchjob_stats_db.samples.endless_recorder",
        str(samples),
        str(first),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        done = int(process.stdout.readline())
        time.sleep(seconds)
        process.kill()
        said = process.stdout.read().split("\n")[:-1]  # a number that was cut off says nothing
    return int(said[-1]) if said else done


def test_killed_at_random_instants(tmp_path):
    chance = random.Random(17)
    first, expected = 0, set()
    for _ in range(KILLS):
        done = killed(tmp_path, first, chance.uniform(0.0, 0.2))
        expected |= set(range(first, done + 1))
        found = {jobid: passes_of(tmp_path, jobid) for jobid in JOBS}
        for numbers in found.values():
            assert numbers == sorted(set(numbers))  # none twice
            assert expected <= set(numbers)
            assert numbers[-1] <= done + 1  # the pass in which it was killed
        first = max(numbers[-1] for numbers in found.values()) + 1
    assert len(expected) > 10 * KILLS
