"""What puts batchjob onto machines."""
