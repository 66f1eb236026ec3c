"""Where a job's past measurements are: a Prometheus-compatible server, or sample files."""
