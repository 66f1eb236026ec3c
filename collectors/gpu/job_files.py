"""The directory of files in which a prolog names the jobs of each GPU, for dcgm-exporter as well.

A file is named by a GPU's number (`0`; `0.3` is GPU instance 3 of GPU 0, which releases of
dcgm-exporter before 2026 ignore) or UUID, and has one job id per line. Source: dcgm-exporter,
--hpc-job-mapping-dir.
"""

import logging
import os
import re
from collections.abc import Mapping

from batchjob.runtime.log import LogOnce

log = logging.getLogger(__name__)

_PROLOG_FILE = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-[0-9A-Fa-f-]+")


class PrologFiles:
    """A directory that a prolog writes, read to map GPUs to jobs.

    Text after a space is ignored, since some prologs write the uid there. Unreadable files are
    logged once, and other sources are used.
    """

    def __init__(self, directory: str) -> None:
        """`directory` may be "": there is no prolog."""
        self._directory = directory
        self._once = LogOnce(log)

    def read(self) -> Mapping[str, frozenset[str]]:
        """Job id → names of the files that contain it; empty while there is no directory."""
        jobs: dict[str, set[str]] = {}
        for name in filter(_PROLOG_FILE.fullmatch, self._list_files()):
            for line in self._read_lines(os.path.join(self._directory, name)):
                if line.strip():
                    jobs.setdefault(line.split()[0], set()).add(name)
        return {job: frozenset(names) for job, names in jobs.items()}

    def _list_files(self) -> list[str]:
        try:
            names = os.listdir(self._directory) if self._directory else []
        except OSError as error:
            self._warn(self._directory, error)
            return []
        self._once.forget(self._directory)
        return names

    def _read_lines(self, path: str) -> list[str]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read(65536).splitlines()
        except OSError as error:
            self._warn(path, error)
            return []
        self._once.forget(path)
        return lines

    def _warn(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # FileNotFoundError: removed by the epilog
            message = "%s: %s; other sources are used to map GPUs to jobs"
            self._once.warning(path, message, path, error.strerror)
