"""Files in the exporter's state directory: what a restart within one boot must not lose."""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.log import LogOnce
from collectors.host import Host, read_text

log = logging.getLogger(__name__)

VERSION = 1


def boot_id(procfs: str) -> str:
    """The id of the machine's current boot; empty if the kernel has none."""
    return read_text(f"{procfs}/sys/kernel/random/boot_id")


class StateFile:
    """One file; without a state directory nothing is kept. Its failures are logged, not raised."""

    def __init__(self, host: Host, name: str, counters: str) -> None:
        """`counters`: what is kept in it, in words."""
        directory = host.state_directory
        self._path = os.path.join(directory, name) if directory else ""
        self._boot = boot_id(host.procfs)
        self._counters = counters
        self._once = LogOnce(log)

    def load(self) -> dict[str, Any]:
        """The content; empty if there is none, or none that can be used."""
        try:
            with open(self._path, "rb") as file:
                document = parse_json(file.read(), finite=True)
            if isinstance(document, dict) and document.get("version") == VERSION:
                return document
            self.refuse(f"{self._path}: not a state of this version")
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                self.refuse(error)
        return {}

    def is_of_boot(self, document: Mapping[str, Any]) -> bool:
        """Whether a content was saved in this boot, in which all counters of the kernel go on."""
        return bool(self._boot) and document.get("boot_id") == self._boot

    def refuse(self, reason: object) -> None:
        log.warning("%s start from zero: %s", self._counters, reason)

    def save(self, document: Mapping[str, Any]) -> None:
        """Replace the content in one step; if that fails, no older one is left to be believed."""
        if not self._path:
            return
        try:
            with open(self._path + ".new", "w", encoding="utf-8") as file:
                file.write(json.dumps({"version": VERSION, "boot_id": self._boot, **document}))
            Path(self._path + ".new").replace(self._path)
            self._once.forget("save")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            message = "%s will start from zero after a restart: %s"
            self._once.warning("save", message, self._counters, error)
