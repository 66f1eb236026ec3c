"""How long the README's first command takes until all that it promises is seen.

    PYTHONPATH=. python benchmarks/first_command.py [TIMES]

Prints, for each time, the seconds until the address is printed and until everything is there, and
the CPU seconds used until then. To be run as root on a machine that has nothing else to do.
"""

import sys
import tempfile
from pathlib import Path

from tests.e2e.first_command import run_first_command


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            look = run_first_command(Path(folder))
        print(
            f"address {look.address_seconds:.1f} s, all {look.all_seconds:.1f} s, "
            f"CPU {look.cpu_seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
