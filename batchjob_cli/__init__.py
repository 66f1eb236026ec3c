"""The command `batchjob`."""
