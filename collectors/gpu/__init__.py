"""GPUs: their metrics, and the jobs that hold them."""
