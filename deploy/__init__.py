"""Installation of batchjob on machines."""
