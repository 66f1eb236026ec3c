"""The directory of files that name the jobs of each GPU, as a prolog and dcgm-exporter share them.

A file is named by a GPU's number (`0`; `0.3` is GPU instance 3 of GPU 0, which releases of
dcgm-exporter before 2026 ignore) or UUID, and has one job id per line. Source: dcgm-exporter,
--hpc-job-mapping-dir.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from batchjob.runtime.log import LogOnce
from collectors.gpu.holders import Holding

log = logging.getLogger(__name__)

_PROLOG_FILE = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-[0-9A-Fa-f-]+")
# Lists the files created here, so that they are recognised after a crash. dcgm-exporter ignores
# names that are not numbers.
_INDEX_FILE = ".batchjob"
_OWN_FILE = re.compile(r"\d+(\.\d+)?")


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


class JobFiles:
    """A directory written here, from which dcgm-exporter takes its label `hpc_job`.

    Only files that were created here are ever changed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._written: dict[str, str] | None = None  # by file name; None until the first write
        self._once = LogOnce(log)

    def write(self, holdings: Iterable[Holding]) -> None:
        """Write the files; raises OSError if the directory is not writable.

        The file of a GPU without a holder is emptied, not deleted: dcgm-exporter lists the
        directory and then opens the files, and its whole scrape fails if one is deleted in between.
        """
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self._written is None:
            self._written = self._read_existing_files()
        wanted = dict.fromkeys(self._written, "") | file_contents(holdings)
        for name in wanted.keys() - self._written.keys():
            if (self._directory / name).exists():
                self._once.warning(
                    name, "%s belongs to another program; not changed", self._directory / name
                )
                del wanted[name]
        if wanted.keys() != self._written.keys():
            self._replace(_INDEX_FILE, "".join(f"{name}\n" for name in sorted(wanted)))
        for name, text in wanted.items():
            if self._written.get(name) != text:
                self._replace(name, text)
                self._written[name] = text

    def remove(self) -> None:
        """Remove the files that were created here and still have the content written last."""
        for name, text in (self._written or {}).items():
            path = self._directory / name
            with contextlib.suppress(OSError):  # removed by another user
                if path.read_text(encoding="utf-8") == text:
                    path.unlink()
        if self._written is not None:
            with contextlib.suppress(OSError):
                (self._directory / _INDEX_FILE).unlink()
        self._written = None

    def _read_existing_files(self) -> dict[str, str]:
        """The content of the files that an exporter wrote before it was killed, by name."""
        try:
            names = (self._directory / _INDEX_FILE).read_text(encoding="utf-8").split()
        except OSError:
            return {}
        found = {}
        for name in filter(_OWN_FILE.fullmatch, names):
            with contextlib.suppress(OSError):  # removed by the epilog
                found[name] = (self._directory / name).read_text(encoding="utf-8")
        return found

    def _replace(self, name: str, text: str) -> None:
        new = self._directory / f".{name}.new"
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(self._directory / name)


def file_contents(holdings: Iterable[Holding]) -> dict[str, str]:
    """The text of each file by its name."""
    jobs: dict[str, list[str]] = {}
    for holding in holdings:
        gpu, instance = holding.unit.gpu, holding.unit.instance
        if gpu.vendor == "nvidia" and "\n" not in holding.job.jobid:
            name = str(gpu.index) if instance is None else f"{gpu.index}.{instance.gpu_instance}"
            jobs.setdefault(name, []).append(holding.job.jobid)
    return {name: "".join(f"{job}\n" for job in dict.fromkeys(ids)) for name, ids in jobs.items()}
