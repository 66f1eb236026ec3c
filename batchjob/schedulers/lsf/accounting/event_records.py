"""JOB_FINISH records of lsb.acct, whose fields are in an order that grew with LSF's versions.

Facts: lsb.acct(5) of LSF 9.1 and 10.1, corrected by real lines of 9.11, 10.1 and 10.108 where the
manual's order differs (runLimit precedes options3; each host's usage has 5 or 6 values). Older
lines are shorter: fields after their end are missing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchjob.schedulers.fields import RowError
from batchjob.schedulers.lsf.accounting.lsb_line import Word

_LONGEST = 1_000_000  # maximum entries of a list


class Finish(NamedTuple):
    """The fields of a JOB_FINISH that are used, as text."""

    values: dict[str, str]
    hosts: tuple[str, ...]  # one per slot, or "16*host"
    slots: tuple[str, ...]


_FIRST = (
    "eventTime", "jobId", "userId", "options", "numProcessors", "submitTime", "beginTime",
    "termTime", "startTime", "userName", "queue", "resReq", "dependCond", "preExecCmd", "fromHost",
    "cwd", "inFile", "outFile", "errFile", "jobFile",
)  # fmt: skip
_USED = (
    "jStatus", "hostFactor", "jobName", "command",
    "utime", "stime", "maxrss", "ixrss", "ismrss", "idrss", "isrss", "minflt", "majflt", "nswap",
    "inblock", "oublock", "ioch", "msgsnd", "msgrcv", "nsignals", "nvcsw", "nivcsw", "exutime",
    "mailUser", "projectName", "exitStatus", "maxNumProcessors", "loginShell", "timeEvent", "idx",
    "maxRMem", "maxRSwap", "inFileSpool", "commandSpool", "rsvId", "sla", "exceptMask",
    "additionalInfo", "exitInfo", "warningAction", "warningTimePeriod", "chargedSAAP",
    "licenseProject", "app", "postExecCmd", "runtimeEstimation", "jobGroupName", "requeueEvalues",
    "options2", "resizeNotifyCmd", "lastResizeTime", "rsvId2", "jobDescription",
)  # fmt: skip
_NEEDED = _USED.index("exitInfo") + 1
_LAST = (
    "effectiveResReq", "srcCluster", "srcJobId", "dstCluster", "dstJobId", "forwardTime",
    "flow_id", "acJobWaitTime", "totalProvisionTime", "outdir", "runTime", "subcwd",
)  # fmt: skip
_ENERGY = ("affinity", "serial_job_energy", "cpi", "gips", "gbs", "gflops")


class _Reader:
    """Takes words one after the other."""

    def __init__(self, line: Sequence[Word]) -> None:
        self._line = line
        self.at = 0

    def left(self) -> int:
        return len(self._line) - self.at

    def names(self, names: Sequence[str]) -> dict[str, str]:
        found = {
            name: word.text
            for name, word in zip(names, self._line[self.at :][: len(names)], strict=False)
        }
        self.at += len(found)
        return found

    def listed(self, width: int = 1) -> tuple[str, ...]:
        """Read a count, and that many times `width` words."""
        if not self.left():
            return ()
        count = self._count(self._line[self.at])
        end = self.at + 1 + count * width
        if end > len(self._line):
            raise RowError(f"the record ends within a list of {count}")
        taken = tuple(word.text for word in self._line[self.at + 1 : end])
        self.at = end
        return taken

    def usage_of_hosts(self) -> None:
        """Skip numHostRusage; its entries have the width with which the rest can be parsed."""
        if not self.left():
            return
        begin = self.at
        for width in (6, 5):
            self.at = begin
            try:
                self.listed(width)
            except RowError:
                continue
            following = [word.quoted for word in self._line[self.at : self.at + 4]]
            if following == [False, False, False, True][: len(following)]:
                return
        raise RowError("the usage of hosts has neither 5 nor 6 values for each")

    @staticmethod
    def _count(word: Word) -> int:
        text = word.text
        if not word.quoted and text.isascii() and text.isdigit() and int(text) <= _LONGEST:
            return int(text)
        raise RowError(f"expected the length of a list, got {text[:40]!r}")


def finish(line: Sequence[Word]) -> Finish:
    """Fields by name, from the words after type and version; raises RowError.

    The part after the job's description (6 lists and some numbers) is read as far as it can be
    followed: a job is not lost for its energy.
    """
    reader = _Reader(line)
    values = reader.names(_FIRST)
    reader.listed()  # the requested hosts
    hosts = reader.listed()
    used = reader.names(_USED)
    if len(used) < _NEEDED:
        raise RowError(f"the record ends after {len(line)} values")
    values |= used
    slots: tuple[str, ...] = ()
    try:
        reader.listed(2)  # submitExt
        reader.usage_of_hosts()
        values |= reader.names(("runLimit", "options3", "avgMem"))
        values |= reader.names(_LAST)
        reader.listed(2)  # networks
        values |= reader.names(_ENERGY)
        slots = reader.listed()
    except RowError as error:
        values["trouble"] = str(error)
    return Finish(values, hosts, slots)
