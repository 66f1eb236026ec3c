"""Sample files: a job's measurements over time, where there is no time series database."""

SETTLE_SECONDS = 60
"""After a job's end: its last sample is its booked energy, 30 s later."""
