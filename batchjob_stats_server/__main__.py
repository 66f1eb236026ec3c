"""The command, also run by `python -m batchjob_stats_server`."""

import sys

from batchjob.runtime.output import run


def main() -> int:
    return run("batchjob_stats_server", "server")


if __name__ == "__main__":
    sys.exit(main())
