"""A JOB_FINISH record and a reader of sources, for the tests of LSF sources."""

RUSAGE = "3601.250000 12.500000 2097152 0 -1 0 0 51200 3 0 0 0 -1 0 0 0 900 40 -1"
FINISH_PARTS = {
    "head": '"JOB_FINISH" "10.1" 1775304000 4242 1001 33554435 4 1775300000 0 0 1775300100 "alice"',
    "where": '"gpu" "rusage[mem=4096]" "" "" "login01" "/home/alice/run" "" "out.%J" "err.%J"',
    "file": '"1775300000.4242" 0',
    "hosts": '4 "node01" "node01" "node02" "node02"',
    "status": "64 12.5",
    "name": '"train[1-9]"',
    "command": '"python train.py --msg ""hello world"""',
    "rusage": RUSAGE,
    "exit": '"" "projA" 0 4 "" "" 3 2097152 4194304 "" "" "" "" 0 ""',
    "info": "0",
    "more": '"" -1 "/projA/alice" "" "ml" "" -1 "" "" 5136 "" 1775300100 "" ""',
    "ext": '2 1032 "0" 1033 "0"',
    "usage": "0",
    "limits": "7200 4194304 1500000",
    "resreq": '"select[type == any] order[r15s:pg] rusage[mem=4096.00,ngpus_physical=1.00] "',
    "rest": '"" -1 "" -1 0 "" 0 0 "" 3900 "/home/alice/run" 0 "" 0.000000 0.00 0.00 0.00 0.00',
    "slots": '4 "node01" "node01" "node02" "node02"',
    "end": '-1 0 0 0 0 1 "schedulingOverhead" "0.00"',
}


def finish_line(**changes) -> str:
    """A JOB_FINISH record of an array task that ran on two nodes, with some parts changed."""
    return " ".join((FINISH_PARTS | changes).values())


def read(source, watermark="", unfinished=None):
    """Read the source once: records, watermark, quarantine."""
    jobs, quarantined = [], []
    for batch in source.read(watermark or source.watermark_at(0), unfinished or {}):
        watermark = batch.watermark
        jobs += batch.jobs
        quarantined += batch.quarantined
    return jobs, watermark, quarantined
