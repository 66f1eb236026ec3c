"""Replaces sacct(1) and squeue(1): prints recorded rows according to its arguments.

Run as `sacct.py RECORDING [sacct's arguments]`; knows the long options that the source uses.
"""

import lzma
import sys
from pathlib import Path

DELIMITER = "\x02"
UNFINISHED_STATES = {"PENDING", "RUNNING", "SUSPENDED"}


def read_recording(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Fields and rows of a recording."""
    head, _, body = lzma.decompress(path.read_bytes()).decode().partition("\n")
    fields = head.split(DELIMITER)
    cells = body.split(DELIMITER)[:-1]
    rows = [cells[at : at + len(fields)] for at in range(0, len(cells), len(fields))]
    return fields, [dict(zip(fields, [row[0].lstrip("\n"), *row[1:]], strict=True)) for row in rows]


def is_listed(job: dict[str, str], options: dict[str, str]) -> bool:
    """Whether sacct would list the job."""
    if "jobs" in options:
        return job["JobIDRaw"] in options["jobs"].split(",")
    begin, end = (int(options[name].removeprefix("uts")) for name in ("starttime", "endtime"))
    assert not UNFINISHED_STATES & set(options["state"].split(","))
    if job["State"] in UNFINISHED_STATES:
        return False
    return begin <= int(job["End"]) < end


def print_queue(rows: list[dict[str, str]], columns: str) -> None:
    """What squeue prints of the jobs that have not ended."""
    fields = [field.partition(":0") for field in columns.split(",")]
    for row in rows:
        if row["State"] not in UNFINISHED_STATES or "." in row["JobIDRaw"]:
            continue
        values = {
            "JobID": row["JobIDRaw"], "JobArrayID": row["JobID"], "UserName": row["User"],
            "UserID": row["UID"], "GroupName": row["Group"], "Name": row["JobName"],
            "SubmitTime": row["Submit"], "StartTime": row["Start"], "EligibleTime": "N/A",
            "tres-alloc": row["AllocTRES"] or row["ReqTRES"], "TimeLimit": "5:00",
        }  # fmt: skip
        cells = (values.get(name, row.get(name, "(null)")) for name, _, _ in fields)
        text = (cell + field[2] for cell, field in zip(cells, fields, strict=True))
        sys.stdout.write("".join(text) + "\n")


def main(recording: str, arguments: list[str]) -> None:
    fields, rows = read_recording(Path(recording))
    if arguments == ["--helpformat"]:
        print(*fields)
        return
    if arguments == ["--version"]:
        print("slurm", Path(recording).name.split("-")[1])
        return
    if arguments == ["show", "config"]:
        return
    format_options = [word for word in arguments if word.startswith("--Format=")]
    if format_options:
        print_queue(rows, format_options[0].removeprefix("--Format="))
        return
    options = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
    options |= {
        word[2:]: value
        for word, value in zip(arguments, [*arguments[1:], ""], strict=True)
        if word.startswith("--") and "=" not in word
    }
    print_row = False
    for row in rows:
        is_step = "." in row["JobIDRaw"]
        if not is_step:
            print_row = is_listed(row, options)
        if print_row and not (is_step and "--allocations" in arguments):
            values = [row[field] for field in options["format"].split(",")]
            sys.stdout.write("".join(value + options["delimiter"] for value in values) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
