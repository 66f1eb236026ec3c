"""The registry of accounting sources, and their shared checks."""

import pytest

from batchjob.runtime.settings import build_section, options_of
from batchjob.schedulers.accounting import (
    SourceError,
    UnfinishedJob,
    check_vanished,
    parse_epoch_watermark,
)
from batchjob.schedulers.registry import SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_source_is_built_from_its_options(name, tmp_path):
    module = SOURCES[name].load()
    settings = {f"{name}.path": str(tmp_path / "log")} if hasattr(module.options, "path") else {}
    source = module.build("c1", build_section(module.options, name, settings))
    assert (source.name, source.cluster) == (name, "c1")
    assert all(option.help.endswith(".") for option in options_of({name: module.options}))
    if not SOURCES[name].has_associations:
        assert isinstance(source.watermark_at(1775300000), str)


def unfinished_jobs(number: int) -> dict[str, UnfinishedJob]:
    return {str(each): UnfinishedJob(1, 1, None) for each in range(number)}


def missing_ids(number: int) -> tuple[str, ...]:
    return tuple(map(str, range(number)))


@pytest.mark.parametrize(("missing", "total"), [(0, 0), (1, 5), (20, 20), (100, 1000)])
def test_few_missing_jobs_have_vanished(missing, total):
    found = check_vanished(
        "x", missing_ids(missing), unfinished_jobs(total), nothing_seen=False, trust_missing=False
    )
    assert len(found) == missing


@pytest.mark.parametrize(("missing", "total", "nothing_seen"), [(21, 100, False), (1, 1, True)])
def test_many_missing_jobs_are_an_error_unless_trusted(missing, total, nothing_seen):
    with pytest.raises(SourceError, match=f"{missing} of {total} unfinished jobs"):
        check_vanished(
            "x",
            missing_ids(missing),
            unfinished_jobs(total),
            nothing_seen=nothing_seen,
            trust_missing=False,
        )
    assert check_vanished(
        "x",
        missing_ids(missing),
        unfinished_jobs(total),
        nothing_seen=nothing_seen,
        trust_missing=True,
    )


@pytest.mark.parametrize("watermark", ["", "now", '{"since": 1}', "-5", "1" * 20])
def test_watermark_of_another_source_is_rejected(watermark):
    with pytest.raises(SourceError, match="expected a watermark in epoch seconds"):
        parse_epoch_watermark("x", watermark)


FILES = {"lsb_acct": False, "lsb_stream": False, "jsonl": True, "pbs_log": True, "runs": True}


@pytest.mark.parametrize("name", FILES)
def test_source_without_files_says_so(name, tmp_path):
    """By its name, whether it reads a directory; a mistyped path must not look like no jobs."""
    module = SOURCES[name].load()
    folder = tmp_path / "empty"
    folder.mkdir()

    def problems(path):
        return " ".join(module.build("c1", module.options(path=str(path))).check())

    if name != "pbs_log":  # which has PBS' own directory as its default
        assert "path is missing" in problems("")
    assert str(tmp_path / "none") in problems(tmp_path / "none")
    if not FILES[name]:
        assert "is a directory" in problems(folder)
    elif name != "runs":  # which nobody has had yet, on a new cluster
        assert "no log file" in problems(folder)
