"""The values from which a figure needs attention (orange) or is bad (red).

If an alert has a threshold, red or the only colour begins there; a test compares them.
"""

from grafana.generate.model import Thresholds

ANY = Thresholds(1)  # for things that should not exist at all
NEAR_LIMIT = Thresholds(0.8, 0.95)  # used part of a limit or a disk
LITTLE_USED = Thresholds(0.5, 0.1, low=True)  # used part of a job's allocation
LITTLE_COVERED = Thresholds(0.95, 0.8, low=True)  # part of jobs' run time that has samples
DOUBTED = Thresholds(0.05, 0.2)  # part of measured jobs with doubts
FAILED = Thresholds(0.2, 0.5)  # part of ended jobs that failed
POLL_AGE = Thresholds(900, 3600)  # seconds since the last successful poll
SLOW_SCRAPE = Thresholds(5, 10)  # seconds; Prometheus' default timeout is 10
ENERGY_DEVIATION = Thresholds(1e-6)  # imbalance of accounts that must balance
