"""The files of this checkout, and copies of it in which a test may change them."""

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def tracked_files() -> list[str]:
    """Paths of the files that git knows and that are there."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


def copy_checkout(folder: Path) -> list[str]:
    """Copy the tracked files into a folder; returns their paths."""
    names = tracked_files()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, folder / name)
    return names
