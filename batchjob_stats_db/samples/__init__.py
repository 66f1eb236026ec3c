"""Sample files: a job's measurements over time, where there is no time series database."""

SETTLE_SECONDS = 60
"""How long after a job's end its samples are complete: its energy is attributed 30 s later."""
