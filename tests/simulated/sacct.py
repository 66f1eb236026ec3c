"""Stands for sacct(1): prints recorded rows by the arguments it is given.

Run as `sacct.py RECORDING [sacct's arguments]`; knows the long options that the source uses.
"""

import lzma
import sys
from pathlib import Path

DELIMITER = "\x02"
LIVE = {"PENDING", "RUNNING", "SUSPENDED"}


def recorded(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Fields and rows of a recording."""
    head, _, body = lzma.decompress(path.read_bytes()).decode().partition("\n")
    fields = head.split(DELIMITER)
    cells = body.split(DELIMITER)[:-1]
    rows = [cells[at : at + len(fields)] for at in range(0, len(cells), len(fields))]
    return fields, [dict(zip(fields, [row[0].lstrip("\n"), *row[1:]], strict=True)) for row in rows]


def wanted(job: dict[str, str], options: dict[str, str]) -> bool:
    """Whether sacct would list the job."""
    if "jobs" in options:
        return job["JobIDRaw"] in options["jobs"].split(",")
    begin, end = (int(options[name].removeprefix("uts")) for name in ("starttime", "endtime"))
    if job["State"] in LIVE:
        return "RUNNING" in options["state"].split(",") and int(job["Submit"]) < end
    return begin <= int(job["End"]) < end


def main(recording: str, arguments: list[str]) -> None:
    fields, rows = recorded(Path(recording))
    if arguments == ["--helpformat"]:
        print(*fields)
        return
    options = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
    options |= {
        word[2:]: value
        for word, value in zip(arguments, [*arguments[1:], ""], strict=True)
        if word.startswith("--") and "=" not in word
    }
    listed = False
    for row in rows:
        if "." not in row["JobIDRaw"]:
            listed = wanted(row, options)
        if listed:
            values = [row[field] for field in options["format"].split(",")]
            sys.stdout.write("".join(value + options["delimiter"] for value in values) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
