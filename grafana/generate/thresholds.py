"""The values from which a figure needs attention (orange) or is bad (red).

If an alert has a threshold, red or the only colour begins there; a test compares them.
"""

from batchjob.judgements import (
    COMPLETE_COVERAGE,
    DOUBTED_PART,
    FAILED_PART,
    IDLE_CPU_PART,
    NOTABLE_LIMIT_PART,
    thresholds,
)
from grafana.generate.model import Thresholds

_SITE = thresholds()
ANY = Thresholds(1)  # for things that should not exist at all
NEAR_LIMIT = Thresholds(NOTABLE_LIMIT_PART, _SITE.near_limit)  # used part of a limit or a disk
LITTLE_USED = Thresholds(_SITE.advised_use, IDLE_CPU_PART, low=True)  # part of its allocation
# Part of jobs' run time that has samples.
LITTLE_COVERED = Thresholds(COMPLETE_COVERAGE, _SITE.enough_coverage, low=True)
DOUBTED = Thresholds(*DOUBTED_PART)  # part of measured jobs with doubts
FAILED = Thresholds(*FAILED_PART)  # part of ended jobs that failed
POLL_AGE = Thresholds(900, 3600)  # seconds since the last successful poll
SLOW_SCRAPE = Thresholds(5, 10)  # seconds; Prometheus' default timeout is 10
ENERGY_DEVIATION = Thresholds(1e-6)  # imbalance of accounts that must balance
