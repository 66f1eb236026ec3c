"""`batchjob cancel`, see stop.py."""

from batchjob_cli.stop import cancel as run

__all__ = ["run"]
