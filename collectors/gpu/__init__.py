"""GPUs: what they do, and whose they are."""
