"""LSF's event files, and JOB_FINISH records, whose fields are in an order that grew with versions.

A line has words and quoted strings, in which a quote is doubled; there are no other escapes
(lsb.acct(5), lsb.stream(5)). A record with a line break ends where the next record begins.

Facts: lsb.acct(5) of LSF 9.1 and 10.1, corrected by real lines of 9.11, 10.1 and 10.108 where the
manual's order differs (runLimit precedes options3; each host's usage has 5 or 6 values). Older
lines are shorter: fields after their end are missing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from batchjob.schedulers.fields import RowError

_WORD = re.compile(r'"((?:[^"]|"")*)"(?= |$)|(\S+)')
_RECORD = re.compile(rb'"(?:JOB|EVENT)_[A-Z0-9_]+" "')
_MAX_RECORD_LINES = 64  # maximum lines of a record


def begins_record(line: bytes) -> bool:
    return line.startswith(b"#") or _RECORD.match(line) is not None


class Word(NamedTuple):
    """One value; numbers are not quoted, most strings are."""

    text: str
    quoted: bool


def split_words(line: str) -> list[Word]:
    return [
        Word(match[2], quoted=False)
        if match[2] is not None
        else Word(match[1].replace('""', '"'), quoted=True)
        for match in _WORD.finditer(line)
    ]


def join_records(lines: Iterable[bytes]) -> Iterator[str]:
    parts: list[bytes] = []
    for line in lines:
        if line.startswith(b"#"):
            continue
        if parts and (begins_record(line) or len(parts) == _MAX_RECORD_LINES):
            yield _text(parts)
            parts = []
        if line.strip() or parts:
            parts.append(line)
    if parts:
        yield _text(parts)


def _text(parts: list[bytes]) -> str:
    return b" ".join(parts).decode("utf-8", "backslashreplace").strip()


_MAX_LIST_LENGTH = 1_000_000  # maximum entries of a list

_LEADING_FIELDS = (
    "eventTime", "jobId", "userId", "options", "numProcessors", "submitTime", "beginTime",
    "termTime", "startTime", "userName", "queue", "resReq", "dependCond", "preExecCmd", "fromHost",
    "cwd", "inFile", "outFile", "errFile", "jobFile",
)  # fmt: skip
_MIDDLE_FIELDS = (
    "jStatus", "hostFactor", "jobName", "command",
    "utime", "stime", "maxrss", "ixrss", "ismrss", "idrss", "isrss", "minflt", "majflt", "nswap",
    "inblock", "oublock", "ioch", "msgsnd", "msgrcv", "nsignals", "nvcsw", "nivcsw", "exutime",
    "mailUser", "projectName", "exitStatus", "maxNumProcessors", "loginShell", "timeEvent", "idx",
    "maxRMem", "maxRSwap", "inFileSpool", "commandSpool", "rsvId", "sla", "exceptMask",
    "additionalInfo", "exitInfo", "warningAction", "warningTimePeriod", "chargedSAAP",
    "licenseProject", "app", "postExecCmd", "runtimeEstimation", "jobGroupName", "requeueEvalues",
    "options2", "resizeNotifyCmd", "lastResizeTime", "rsvId2", "jobDescription",
)  # fmt: skip
_REQUIRED_COUNT = _MIDDLE_FIELDS.index("exitInfo") + 1
_TRAILING_FIELDS = (
    "effectiveResReq", "srcCluster", "srcJobId", "dstCluster", "dstJobId", "forwardTime",
    "flow_id", "acJobWaitTime", "totalProvisionTime", "outdir", "runTime", "subcwd",
)  # fmt: skip
_ENERGY_FIELDS = ("affinity", "serial_job_energy", "cpi", "gips", "gbs", "gflops")


class _WordReader:
    def __init__(self, line: Sequence[Word]) -> None:
        self._line = line
        self.at = 0

    def remaining(self) -> int:
        return len(self._line) - self.at

    def read_fields(self, names: Sequence[str]) -> dict[str, str]:
        fields = {
            name: word.text
            for name, word in zip(names, self._line[self.at :][: len(names)], strict=False)
        }
        self.at += len(fields)
        return fields

    def read_list(self, width: int = 1) -> tuple[str, ...]:
        """Read a count, and that many times `width` words."""
        if not self.remaining():
            return ()
        count = self._parse_length(self._line[self.at])
        end = self.at + 1 + count * width
        if end > len(self._line):
            raise RowError(f"the record ends within a list of {count}")
        texts = tuple(word.text for word in self._line[self.at + 1 : end])
        self.at = end
        return texts

    def skip_host_usage(self) -> None:
        """Skip numHostRusage; its entries have the width with which the rest can be parsed."""
        if not self.remaining():
            return
        begin = self.at
        for width in (6, 5):
            self.at = begin
            try:
                self.read_list(width)
            except RowError:
                continue
            following = [word.quoted for word in self._line[self.at : self.at + 4]]
            if following == [False, False, False, True][: len(following)]:
                return
        raise RowError("the usage of hosts has neither 5 nor 6 values for each")

    @staticmethod
    def _parse_length(word: Word) -> int:
        text = word.text
        if not word.quoted and text.isascii() and text.isdigit() and int(text) <= _MAX_LIST_LENGTH:
            return int(text)
        raise RowError(f"expected the length of a list, got {text[:40]!r}")


def parse_job_finish(
    line: Sequence[Word],
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...], str]:
    """Fields, hosts, slots, and why the last ones are missing, from the words after the version.

    Fields are by name; hosts are one per slot, or `16*host`. Raises RowError.
    The part after the job's description (6 lists and some numbers) is read as far as it can be
    parsed: a job is not lost because its energy cannot be parsed.
    """
    reader = _WordReader(line)
    values = reader.read_fields(_LEADING_FIELDS)
    reader.read_list()  # the requested hosts
    hosts = reader.read_list()
    middle = reader.read_fields(_MIDDLE_FIELDS)
    if len(middle) < _REQUIRED_COUNT:
        raise RowError(f"the record ends after {len(line)} values")
    values |= middle
    slots: tuple[str, ...] = ()
    parse_error = ""
    try:
        reader.read_list(2)  # submitExt
        reader.skip_host_usage()
        values |= reader.read_fields(("runLimit", "options3", "avgMem"))
        values |= reader.read_fields(_TRAILING_FIELDS)
        reader.read_list(2)  # networks
        values |= reader.read_fields(_ENERGY_FIELDS)
        slots = reader.read_list()
    except RowError as error:
        parse_error = str(error)
    return values, hosts, slots, parse_error
