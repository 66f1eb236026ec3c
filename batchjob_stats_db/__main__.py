"""The command, also run by `python -m batchjob_stats_db`."""

import sys

from batchjob.runtime.output import run


def main() -> int:
    return run("batchjob_stats_db", "db")


if __name__ == "__main__":
    sys.exit(main())
