"""Generates the recording of `batchjob up --demo`: `python -m benchmarks.demo`."""
