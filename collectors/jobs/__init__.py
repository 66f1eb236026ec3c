"""Batch jobs, from the cgroup trees that schedulers create."""
