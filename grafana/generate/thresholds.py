"""The values from which a figure needs attention (orange) or is bad (red).

If an alert has a threshold, red or the only colour begins there; a test compares them.
"""

from grafana.generate.model import Thresholds

ANY = Thresholds(1)  # of what should not be there at all
NEAR_LIMIT = Thresholds(0.8, 0.95)  # the part of a limit, or of a disk, that is used
LITTLE_USED = Thresholds(0.5, 0.1, low=True)  # the part that is used of what a job holds
LITTLE_COVERED = Thresholds(0.95, 0.8, low=True)  # the part of jobs' run time that has samples
DOUBTED = Thresholds(0.05, 0.2)  # the part of measured jobs that bear a doubt
FAILED = Thresholds(0.2, 0.5)  # the part of ended jobs that failed
POLL_AGE = Thresholds(900, 3600)  # seconds since the last good poll
SLOW_SCRAPE = Thresholds(5, 10)  # seconds; Prometheus gives up after 10 by default
ENERGY_DEVIATION = Thresholds(1e-6)  # of accounts that must balance
