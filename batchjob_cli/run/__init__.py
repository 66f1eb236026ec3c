"""`batchjob run`: a command as a job of its own."""
