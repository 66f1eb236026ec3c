"""Collectors: each module reads one source of metrics."""
