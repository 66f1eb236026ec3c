"""A recorder killed at any time: every sample that was written can be read.

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


def readable_passes(samples, jobid):
    """Numbers of the passes whose sample can be read."""
    replay = Replay(samples, jobid)
    try:
        found = [round((step.sample.at - T) / 5) for step in replay.read()]
        assert not replay.damages
    finally:
        replay.close()
    return found


def run_until_killed(samples, first, passes, seconds):
    """Run the recorder for some passes and seconds, kill it; the last pass that it printed."""
    argv = [
        sys.executable,
        "-m",
        "tests.batchjob_stats_db.samples.endless_recorder",
        str(samples),
        str(first),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(passes):
            done = int(process.stdout.readline())
        time.sleep(seconds)
        process.kill()
        printed = process.stdout.read().split("\n")[:-1]  # the last number may be cut off
    return int(printed[-1]) if printed else done


def test_recorder_killed_at_random_times_loses_no_sample(tmp_path):
    rng = random.Random(17)
    first, expected = 0, set()
    for kill in range(KILLS):
        done = run_until_killed(tmp_path, first, (30, 1)[kill % 2], rng.uniform(0.0, 0.2))
        expected |= set(range(first, done + 1))
        found = {jobid: readable_passes(tmp_path, jobid) for jobid in JOBS}
        for numbers in found.values():
            assert numbers == sorted(set(numbers))  # no duplicates
            assert expected <= set(numbers)
            assert numbers[-1] <= done + 1  # the pass in which it was killed
        first = max(numbers[-1] for numbers in found.values()) + 1
    assert len(expected) > 10 * KILLS
