"""Batch jobs, from the cgroup trees that schedulers make."""
