"""Job monitoring for HPC centres: the vocabulary all parts share."""

__version__ = "0.1.0"
