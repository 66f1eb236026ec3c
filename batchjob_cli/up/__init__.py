"""`batchjob up`: all of batchjob on one machine, in one process."""
