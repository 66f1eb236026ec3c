"""The table of sources, and what they share."""

import pytest

from batchjob.runtime.settings import build_section, options_of
from batchjob.schedulers.accounting import (
    ShrunkenError,
    SourceError,
    UnfinishedJob,
    check_vanished,
    parse_epoch_watermark,
)
from batchjob.schedulers.registry import SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_built_from_its_options(name, tmp_path):
    module = SOURCES[name].load()
    given = {f"{name}.path": str(tmp_path / "log")} if hasattr(module.options, "path") else {}
    source = module.build("c1", build_section(module.options, name, given))
    assert (source.name, source.cluster) == (name, "c1")
    assert all(option.spec.help.endswith(".") for option in options_of({name: module.options}))
    if not SOURCES[name].people:
        assert isinstance(source.watermark_at(1775300000), str)


def unfinished(number: int) -> dict[str, UnfinishedJob]:
    return {str(each): UnfinishedJob(1, 1, None) for each in range(number)}


def gone(number: int) -> tuple[str, ...]:
    return tuple(map(str, range(number)))


@pytest.mark.parametrize(("missing", "of"), [(0, 0), (1, 5), (20, 20), (100, 1000)])
def test_some_jobs_may_vanish(missing, of):
    found = check_vanished(
        "x", gone(missing), unfinished(of), nothing_seen=False, trust_missing=False
    )
    assert len(found) == missing


@pytest.mark.parametrize(("missing", "of", "nothing"), [(21, 100, False), (1, 1, True)])
def test_many_at_once_are_an_error_unless_a_person_says_so(missing, of, nothing):
    with pytest.raises(ShrunkenError, match=f"{missing} of {of} unfinished jobs"):
        check_vanished(
            "x", gone(missing), unfinished(of), nothing_seen=nothing, trust_missing=False
        )
    assert check_vanished(
        "x", gone(missing), unfinished(of), nothing_seen=nothing, trust_missing=True
    )


@pytest.mark.parametrize("watermark", ["", "now", '{"since": 1}', "-5", "1" * 20])
def test_a_watermark_of_another_source_is_refused(watermark):
    with pytest.raises(SourceError, match="expected a watermark in epoch seconds"):
        parse_epoch_watermark("x", watermark)
