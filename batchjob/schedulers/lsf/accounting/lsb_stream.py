"""LSF's lsb.stream with JOB_FINISH2 records, whose fields are named.

lsb.params needs `ENABLE_EVENT_STREAM=Y` and JOB_FINISH2 in ALLOW_EVENT_TYPE. Fields that are zero
or unset are omitted; execHosts, slotUsages and allocSlots are repeated for each host.
"""

from collections.abc import Sequence
from pathlib import Path

from batchjob.runtime.json_reader import damaged, repeated_names, unique_pairs
from batchjob.schedulers.accounting import AccountingModule
from batchjob.schedulers.fields import FieldReader, RowError
from batchjob.schedulers.lsf.accounting.event_records import Word
from batchjob.schedulers.lsf.accounting.lsb_acct import EventFileOptions, LsfLog
from batchjob.schedulers.lsf.accounting.records import ended_job
from batchjob.schedulers.records import JobRecord

_SOURCE = "lsb_stream"

# Names of lsb.stream that differ from those of lsb.acct.
_LSB_ACCT_NAMES = {"ru_utime": "utime", "ru_stime": "stime", "maxMem": "maxRMem", "index": "idx"}
_LISTS = frozenset(("execHosts", "slotUsages", "allocSlots"))  # repeated for each host
_OMITTED_ZEROS = {"exitStatus": "0", "exitInfo": "0", "idx": "0"}


def build(cluster: str, options: EventFileOptions) -> LsfLog:
    return LsfLog(_SOURCE, cluster, Path(options.path), "JOB_FINISH2", job_from_finish2)


def job_from_finish2(cluster: str, line: Sequence[Word]) -> tuple[JobRecord, list[str]]:
    """A record from `"JOB_FINISH2" "version" time jobId pairs "name" "value" ...`."""
    if len(line) < 5:
        raise RowError(f"the record ends after {len(line)} values")
    texts = [word.text for word in line]
    pairs = list(zip(texts[5::2], texts[6::2], strict=False))
    values = unique_pairs(
        [(_LSB_ACCT_NAMES.get(name, name), value) for name, value in pairs if name not in _LISTS]
    )
    hosts = [value for name, value in pairs if name == "execHosts"]
    usages = [value for name, value in pairs if name == "slotUsages"]
    slots = [value for name, value in pairs if name == "allocSlots"]
    if len(usages) == len(hosts):
        hosts = [f"{usage}*{host}" for usage, host in zip(usages, hosts, strict=True)]
    named = {"endTime": texts[2]} | _OMITTED_ZEROS | values | {"jobId": texts[3]}
    row = FieldReader(damaged(named, repeated_names(values)))
    job = ended_job(cluster, _SOURCE, row, hosts, slots if not usages else ())
    if len(texts) % 2 == 0:
        row.parse_errors.append("the record ends within a pair")
    return job, row.parse_errors


ACCOUNTING = AccountingModule(EventFileOptions, build)
