"""Job layouts that a site configures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.jobs.discovery.site_layouts import all_layouts, site_layouts
from collectors.jobs.discovery.walk import match


def test_pattern():
    rows = site_layouts(
        [{"manager": "mybatch", "pattern": "/my.tree/user_{uid}/*/job_{jobid}-{queue}"}]
    )
    job = match("my.tree/user_17/x/job_9-long", rows, 2)
    assert job is not None
    assert (job.manager, job.jobid, job.uid, job.info) == ("mybatch", "9", 17, (("queue", "long"),))
    assert job.layout.owner == "path-uid"
    assert match("myXtree/user_17/x/job_9-long", rows, 2) is None


def test_regular_expression_for_one_cgroup_version():
    row = {"manager": "mine", "regex": "**/n[0-9]+/job_(?P<jobid>[0-9]+)", "versions": 2}
    rows = site_layouts([row])
    job = match("a/b/n7/job_1", rows, 2)
    assert job is not None
    assert job.layout.owner == "process"
    assert match("a/b/n7/job_1", rows, 1) is None


def test_escaped_job_id():
    row = {
        "manager": "pbs",
        "pattern": "/site.slice/site-{jobid}.slice",
        "escaped": True,
    }
    job = match(r"site.slice/site-1\x5b2\x5d.srv.slice", site_layouts([row]), 1)
    assert job is not None
    assert job.jobid == "1[2].srv"


PATTERN = {"manager": "m", "pattern": "/m/{jobid}"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x", "expected a list of rows, each with manager and pattern, got 'x'"),
        ([PATTERN, 3], "row 2: expected keys such as manager and pattern, got 3"),
        ([{**PATTERN, "patern": 1}], "row 1: unknown key patern; did you mean pattern?"),
        (
            [{"pattern": "/m/{jobid}"}],
            "row 1: manager: expected a word in lower case such as slurm, got None",
        ),
        (
            [{**PATTERN, "manager": "My Batch"}],
            "row 1: manager: expected a word in lower case such as slurm, got 'My Batch'",
        ),
        ([{"manager": "m"}], "row 1: expected either pattern or regex"),
        ([{**PATTERN, "regex": "x"}], "row 1: expected either pattern or regex"),
        (
            [{"manager": "m", "pattern": "/m/job"}],
            "row 1: expected {jobid} in the last directory of the path",
        ),
        (
            [{"manager": "m", "pattern": "/{jobid}/x"}],
            "row 1: expected {jobid} in the last directory of the path",
        ),
        ([{"manager": "m", "pattern": "/{uid}-{uid}/{jobid}"}], "row 1: pattern: "),
        (
            [{"manager": "m", "pattern": "/{uid}/{uid}/{jobid}"}],
            "row 1: uid must not be repeated",
        ),
        (
            [{"manager": "m", "pattern": "/m/{job id}"}],
            "row 1: pattern: expected {name} with a name of letters, got '{job id}'",
        ),
        (
            [{"manager": "m", "pattern": "/m//{jobid}"}],
            "row 1: pattern: expected the name of a directory between slashes, got ''",
        ),
        (
            [{"manager": "m", "pattern": "/m/**/{jobid}"}],
            "row 1: pattern: expected the name of a directory between slashes, got '**'",
        ),
        (
            [{"manager": "m", "pattern": "/sys/fs/cgroup/m/{jobid}"}],
            "row 1: pattern: expected a path that begins below the mount",
        ),
        (
            [{"manager": "m", "regex": "m/(?P<jobid>"}],
            "row 1: regex: '(?P<jobid>' is not a regular expression: missing ),",
        ),
        (
            [{**PATTERN, "pattern": 3}],
            "row 1: pattern: expected a path such as /mybatch/job_{jobid}, got 3",
        ),
        ([{**PATTERN, "versions": [3]}], "row 1: versions: expected 1, 2 or [1, 2], got [3]"),
        ([{**PATTERN, "escaped": "yes"}], "row 1: escaped: expected true or false, got 'yes'"),
    ],
)
def test_invalid_row_is_reported_in_one_line(rows, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        site_layouts(rows)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(message)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["manager", "pattern", "regex", "versions", "escaped"]),
            st.text() | st.integers() | st.booleans() | st.none() | st.lists(st.integers(1, 3)),
        )
    )
)
def test_arbitrary_rows_are_valid_or_raise_value_error(rows):
    try:
        layouts = site_layouts(rows)
    except ValueError:
        return
    match("a/b/c", layouts, 1)


def test_built_in_row_is_enabled_and_disabled_by_name():
    rows = all_layouts(
        site_layouts(
            [{"name": "docker-cgroupfs", "enabled": True}, {"name": "kubernetes", "enabled": False}]
        )
    )
    container = match(f"docker/{64 * 'a'}", rows, 1)
    assert container is not None
    assert (container.manager, container.jobid) == ("docker", 64 * "a")
    pod = "kubepods/pod0123456789abcdef0123456789abcdef"
    assert match(pod, all_layouts(()), 1) is not None
    assert match(pod, rows, 1) is None


def test_rows_are_named_and_can_be_disabled():
    rows = site_layouts([{**PATTERN, "name": "mine"}, {**PATTERN, "enabled": False}])
    assert [(row.name, row.enabled) for row in rows] == [("mine", True), ("site-2", False)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"name": "kubernets", "enabled": True}],
            "row 1: name: expected the name of a built-in row; did you mean kubernetes?, or a "
            "pattern, "
            "got 'kubernets'",
        ),
        ([{**PATTERN, "name": "Mine"}], "row 1: name: expected a word in lower case such as"),
        ([{**PATTERN, "enabled": "yes"}], "row 1: enabled: expected true or false, got 'yes'"),
        ([{**PATTERN, "name": "a"}, {**PATTERN, "name": "a"}], "row 2: name: a must not be"),
    ],
)
def test_invalid_names_and_enabled_values_are_reported(rows, message):
    with pytest.raises(ValueError, match=r"^row") as caught:
        site_layouts(rows)
    assert str(caught.value).startswith(message)
