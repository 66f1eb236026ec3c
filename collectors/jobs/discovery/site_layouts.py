"""Layouts that a site adds in the configuration file.

    collector.jobs.layouts:
      - manager: mybatch
        pattern: /mybatch/user_{uid}/job_{jobid}
      - manager: pbs                               # a cgroup_prefix of PBS Pro 19
        pattern: /site.slice/site-{jobid}.slice
        escaped: true
      - manager: slurm
        regex: '**/nodes/(?P<node>n[0-9]+)/job_(?P<jobid>[0-9]+)'
        versions: [2]
      - {name: kubernetes, enabled: false}         # a row of the built-in table, by its name
      - {manager: podman, enabled: true}           # all built-in rows of a manager

In a pattern, `{jobid}`, `{uid}`, `{started}` or any other name stands for a part of one directory's
name, `*` for any text in it, and `**/` at the start for any directories.
"""

import re
from collections.abc import Mapping
from typing import Any

from batchjob.runtime.settings import suggest_nearest
from batchjob.schedulers import registry
from batchjob.schedulers.layout import V1_AND_V2, Layout, layout, unescape_unit_name

_KEYS = ("name", "enabled", "manager", "pattern", "regex", "versions", "escaped")
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_BUILT_IN = {row.name: row for row in registry.layouts()}
_NUMBERS = ("uid", "started")


def site_layouts(value: Any) -> tuple[Layout, ...]:
    """Layouts from the value of `collector.jobs.layouts`.

    Raises ValueError with one line that names the row, the key and what was expected.
    """
    if not isinstance(value, list):
        raise ValueError(f"expected a list of rows, each with manager and pattern, got {value!r}")
    rows: dict[str, Layout] = {}
    for number, row in enumerate(value, 1):
        try:
            for parsed in _parse_row(number, row):
                if parsed.name in rows:
                    raise ValueError(f"name: {parsed.name} must not be repeated")
                rows[parsed.name] = parsed
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
    return tuple(rows.values())


def all_layouts(site: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The site's rows, then the built-in ones; a site's row replaces one of the same name."""
    names = {row.name for row in site}
    return (*site, *(row for row in registry.layouts() if row.name not in names))


def _parse_row(number: int, row: Any) -> list[Layout]:
    if not isinstance(row, Mapping):
        raise ValueError(f"expected keys such as manager and pattern, got {row!r}")
    for key in row:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key}{suggest_nearest(str(key), _KEYS)}")
    escaped = _parse_boolean(row, "escaped", default=False)
    enabled = _parse_boolean(row, "enabled", default=True)
    name = _parse_word("name", row.get("name", f"site-{number}"), "such as kubernetes")
    if set(row) <= {"name", "enabled"}:
        if name not in _BUILT_IN:
            suggestion = suggest_nearest(name, tuple(_BUILT_IN))
            raise ValueError(
                f"name: expected the name of a built-in row{suggestion}, or a pattern, got {name!r}"
            )
        return [_BUILT_IN[name]._replace(enabled=enabled)]
    if set(row) == {"manager", "enabled"}:
        return [each._replace(enabled=enabled) for each in _built_in_rows(row["manager"])]
    parsed = layout(
        name,
        _parse_word("manager", row.get("manager"), "such as slurm"),
        _parse_path(row),
        versions=_parse_versions(row.get("versions", sorted(V1_AND_V2))),
        decode_jobid=unescape_unit_name if escaped else None,
        enabled=enabled,
    )
    _check_groups(parsed)
    return [parsed]


def _built_in_rows(manager: Any) -> list[Layout]:
    rows = [each for each in _BUILT_IN.values() if each.manager == manager]
    if not rows:
        managers = tuple(dict.fromkeys(each.manager for each in _BUILT_IN.values()))
        raise ValueError(
            f"manager: expected one that has built-in rows{suggest_nearest(str(manager), managers)}"
            f", or a pattern, got {manager!r}"
        )
    return rows


def _parse_boolean(row: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = row.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key}: expected true or false, got {value!r}")
    return value


def _parse_word(key: str, value: Any, example: str) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    raise ValueError(f"{key}: expected a word in lower case {example}, got {value!r}")


def _parse_versions(value: Any) -> frozenset[int]:
    given = value if isinstance(value, list) else [value]
    if given and all(version in (1, 2) and not isinstance(version, bool) for version in given):
        return frozenset(given)
    raise ValueError(f"versions: expected 1, 2 or [1, 2], got {value!r}")


def _parse_path(row: Mapping[str, Any]) -> str:
    if ("pattern" in row) == ("regex" in row):
        raise ValueError("expected either pattern or regex")
    key = "pattern" if "pattern" in row else "regex"
    text = row[key]
    if not isinstance(text, str) or not text.strip("/"):
        raise ValueError(f"{key}: expected a path such as /mybatch/job_{{jobid}}, got {text!r}")
    anywhere = text.startswith("**/")
    parts = text.removeprefix("**/").strip("/").split("/")
    if parts[:2] == ["sys", "fs"]:
        raise ValueError(f"{key}: expected a path that begins below the mount, got {text!r}")
    components = [_parse_component(key, part) for part in parts]
    return ("**/" if anywhere else "") + "/".join(components)


def _parse_component(key: str, part: str) -> str:
    if part in ("", ".", "..", "**"):
        raise ValueError(f"{key}: expected the name of a directory between slashes, got {part!r}")
    regex = part if key == "regex" else _translate(part)
    try:
        re.compile(regex, re.ASCII)
    except re.error as error:
        raise ValueError(f"{key}: {regex!r} is not a regular expression: {error}") from error
    return regex


def _translate(part: str) -> str:
    pieces = []
    for piece in re.split(r"(\{\w*\}|\*)", part):
        if piece == "*":
            pieces.append(".*")
        elif re.fullmatch(r"\{[A-Za-z]\w*\}", piece, re.ASCII):
            name = piece[1:-1]
            pieces.append(rf"(?P<{name}>\d+)" if name in _NUMBERS else f"(?P<{name}>.+)")
        elif "{" in piece or "}" in piece:
            raise ValueError(f"pattern: expected {{name}} with a name of letters, got {part!r}")
        else:
            pieces.append(re.escape(piece))
    return "".join(pieces)


def _check_groups(row: Layout) -> None:
    parts = (*row.parents, row.job)
    names = [name for part in parts for name in part.groupindex]
    if "jobid" not in row.job.groupindex:
        raise ValueError("expected {jobid} in the last directory of the path")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{repeated[0]} must not be repeated")
