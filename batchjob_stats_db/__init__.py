"""The database of jobs: every job of a cluster, with its measured usage."""
