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
      - {name: libvirt, enabled: true}             # a row of the built-in table, by its name
      - {name: kubernetes, enabled: false}

In a pattern, `{jobid}`, `{uid}`, `{started}` or any other name stands for a part of one directory's
name, `*` for any text in it, and `**/` at the start for any directories.
"""

import re
from collections.abc import Mapping
from typing import Any

from batchjob.runtime.settings import nearest
from batchjob.schedulers import registry
from batchjob.schedulers.layout import V1_AND_V2, Layout, layout, unescaped

_KEYS = ("name", "enabled", "manager", "pattern", "regex", "steps", "versions", "escaped")
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
            made = _row(number, row)
            if made.name in rows:
                raise ValueError(f"name: {made.name} must not be repeated")
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        rows[made.name] = made
    return tuple(rows.values())


def all_layouts(site: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The site's rows, then the built-in ones; a site's row replaces one of the same name."""
    names = {row.name for row in site}
    return (*site, *(row for row in registry.layouts() if row.name not in names))


def _row(number: int, row: Any) -> Layout:
    if not isinstance(row, Mapping):
        raise ValueError(f"expected keys such as manager and pattern, got {row!r}")
    for key in row:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key}{nearest(str(key), _KEYS)}")
    escaped, enabled = _switch(row, "escaped", default=False), _switch(row, "enabled", default=True)
    name = _name(row.get("name", f"site-{number}"))
    if set(row) <= {"name", "enabled"}:
        if name not in _BUILT_IN:
            raise ValueError(
                f"name: expected the name of a built-in row{nearest(name, tuple(_BUILT_IN))}, or a "
                f"pattern, got {name!r}"
            )
        return _BUILT_IN[name]._replace(enabled=enabled)
    made = layout(
        name,
        _manager(row.get("manager")),
        _path(row),
        versions=_versions(row.get("versions", sorted(V1_AND_V2))),
        decode=unescaped if escaped else None,
        steps=_steps(row.get("steps")),
        enabled=enabled,
    )
    _check_groups(made)
    return made


def _switch(row: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = row.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key}: expected true or false, got {value!r}")
    return value


def _name(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    raise ValueError(f"name: expected a word in lower case such as libvirt, got {value!r}")


def _manager(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    raise ValueError(f"manager: expected a word in lower case such as slurm, got {value!r}")


def _versions(value: Any) -> frozenset[int]:
    given = value if isinstance(value, list) else [value]
    if given and all(version in (1, 2) and not isinstance(version, bool) for version in given):
        return frozenset(given)
    raise ValueError(f"versions: expected 1, 2 or [1, 2], got {value!r}")


def _path(row: Mapping[str, Any]) -> str:
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
    made = [_part(key, part) for part in parts]
    return ("**/" if anywhere else "") + "/".join(made)


def _part(key: str, part: str) -> str:
    if part in ("", ".", "..", "**"):
        raise ValueError(f"{key}: expected the name of a directory between slashes, got {part!r}")
    made = part if key == "regex" else _translated(part)
    _compiled(key, made)
    return made


def _compiled(key: str, regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex, re.ASCII)
    except re.error as error:
        raise ValueError(f"{key}: {regex!r} is not a regular expression: {error}") from error


def _translated(part: str) -> str:
    made = []
    for piece in re.split(r"(\{\w*\}|\*)", part):
        if piece == "*":
            made.append(".*")
        elif re.fullmatch(r"\{[A-Za-z]\w*\}", piece, re.ASCII):
            name = piece[1:-1]
            made.append(rf"(?P<{name}>\d+)" if name in _NUMBERS else f"(?P<{name}>.+)")
        elif "{" in piece or "}" in piece:
            raise ValueError(f"pattern: expected {{name}} with a name of letters, got {part!r}")
        else:
            made.append(re.escape(piece))
    return "".join(made)


def _steps(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip("/"):
        raise ValueError(f"steps: expected a path such as step_{{step}}, got {value!r}")
    made = "/".join(_translated(part) for part in value.strip("/").split("/"))
    groups = _compiled("steps", made).groupindex
    if "step" not in groups or not set(groups) <= {"step", "task"}:
        raise ValueError(f"steps: expected {{step}} and optionally {{task}}, got {value!r}")
    return made


def _check_groups(row: Layout) -> None:
    parts = (*row.parents, row.job)
    names = [name for part in parts for name in part.groupindex]
    if "jobid" not in row.job.groupindex:
        raise ValueError("expected {jobid} in the last directory of the path")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} must not be repeated")
