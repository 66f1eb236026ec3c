"""`batchjob run`: runs a command as a job of its own."""
