"""`batchjob manual`: a manual page of a program."""

from batchjob_cli.completion import manual as run

__all__ = ["run"]
