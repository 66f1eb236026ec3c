"""Sample files: a job's measurements over time, where there is no time series database."""
