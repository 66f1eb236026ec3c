"""`batchjob jobs`, `job` and `stats`: questions about what has run."""
