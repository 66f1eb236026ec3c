"""Parts of batchjob that need optional libraries."""

import importlib
import sys


def missing_library_message(error: ModuleNotFoundError, extra: str) -> str:
    """The message for a missing library, with the extra that installs it."""
    missing = str(error.name).partition(".")[0]
    return (
        f"{missing} is not installed; install it with: pip install 'batchjob-monitoring[{extra}]'"
    )


def run(command: str, extra: str) -> int:
    """Run the `main` of a package that needs an extra; returns its exit status."""
    try:
        module = importlib.import_module(f"{command}.main")
    except ModuleNotFoundError as error:
        print(f"{command}: {missing_library_message(error, extra)}", file=sys.stderr)
        return 2
    return int(module.main())
