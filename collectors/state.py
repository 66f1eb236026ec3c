"""Files in the exporter's state directory: what a restart within one boot must not lose."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchjob.runtime.json_reader import parse_json
from collectors.host import read_text

VERSION = 1


def boot_id(procfs: str) -> str:
    """The id of the machine's current boot; empty if the kernel has none."""
    return read_text(f"{procfs}/sys/kernel/random/boot_id")


def is_of_boot(document: Mapping[str, Any], boot: str) -> bool:
    """Whether a document was saved in this boot, in which all counters of the kernel go on."""
    return bool(boot) and document.get("boot_id") == boot


def save(directory: str, name: str, boot: str, document: Mapping[str, Any]) -> None:
    """Replace a file in one step. Raises OSError, in which case no older file is left."""
    path = os.path.join(directory, name)
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(json.dumps({"version": VERSION, "boot_id": boot, **document}))
        Path(path + ".new").replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def load(directory: str, name: str) -> dict[str, Any] | None:
    """The content of a file; None if there is none. Raises OSError and ValueError."""
    path = os.path.join(directory, name)
    try:
        with open(path, "rb") as file:
            document = parse_json(file.read(), finite=True)
    except FileNotFoundError:
        return None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"{path}: not a state of this version")
    return document
