"""Small pieces of HTML: what they show, and that nobody's words become markup."""

import re

import pytest

from batchjob_stats_server.pages.rendering import fragments
from batchjob_stats_server.pages.rendering.usage_bars import UsageBar

HOSTILE = "<script>alert(1)</script>\"'&"
JOB = {
    "jobid": "40120", "cluster": "alpha", "submit_time": 1_775_300_000, "run": 1, "name": "train",
    "array_jobid": "", "array_index": None, "het_jobid": "", "het_offset": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "40120"),
        ({"array_jobid": "39000", "array_index": 0}, "39000_0"),
        ({"het_jobid": "39000", "het_offset": 2}, "39000+2"),
        ({"jobid": "0f3a2b1c-0000-4000-8000-000000000000"}, "0f3a2b1c…"),
    ],
)
def test_a_job_has_the_id_that_people_know(more, text):
    assert fragments.jobid(JOB | more).striptags() == text


def test_links_lead_to_pages():
    assert fragments.job_link(JOB) == (
        '<a href="/jobs/40120?cluster=alpha&amp;submitted=1775300000">40120</a>'
    )
    assert fragments.node_link("a b", "n1", since=5) == (
        '<a href="/clusters/a%20b/nodes/n1?since=5">n1</a>'
    )
    assert fragments.user_link("alice") == '<a href="/jobs?user=alice">alice</a>'


@pytest.mark.parametrize(
    ("jobid", "text", "linked"),
    [
        ("40120", "afterok:12:34_5(unfulfilled),afterany:7_*", ["12", "34_5", "7"]),
        ("40120", "afterok:12+30,singleton", ["12"]),
        ("9.pbs01", "afterok:15,afterany:2[].pbs01@pbs01", ["15.pbs01", "2"]),
        (
            "40120",
            'done(12) && ended(34[5]) || exit(6, == 3) || done("7 a")',
            ["12", "34%5B5%5D", "6"],
        ),
        ("40120", "", []),
    ],
)
def test_dependencies_lead_to_their_jobs(jobid, text, linked):
    words = fragments.dependencies(JOB | {"jobid": jobid, "dependencies": text})
    assert words.striptags() == text
    assert re.findall(r'href="/jobs/([^"?]+)\?cluster=alpha"', words) == linked


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("afterok:40120", True),
        ("afterok:39000_*", True),
        ("afterok:1:39000_3", True),
        ("afterok:39000_4", False),
        ("afterok:401", False),
        ("singleton", False),
    ],
)
def test_a_job_waits_for_another_or_for_its_array(text, waits):
    task = JOB | {"array_jobid": "39000", "array_index": 3}
    assert fragments.depends_on(JOB | {"jobid": "40200", "dependencies": text}, task) == waits


def test_words_of_others_are_no_markup():
    words = (
        fragments.job_name(JOB | {"name": HOSTILE}),
        fragments.job_link(JOB | {"jobid": HOSTILE, "cluster": HOSTILE}),
        fragments.node_link(HOSTILE, HOSTILE),
        fragments.user_link(HOSTILE),
        fragments.cluster_link(HOSTILE),
        fragments.dependencies(JOB | {"jobid": HOSTILE, "dependencies": f"done(1) {HOSTILE}"}),
        fragments.state_badge(HOSTILE),
        fragments.usage_bar(UsageBar("CPU", 0.5, "good", HOSTILE)),
        fragments.usage_bar(UsageBar("CPU", None, reason=HOSTILE)),
    )
    assert not [each for each in words if "<script" in each or "\"'" in each]


def test_a_bar_ends_at_its_whole_and_tells_what_is_much_or_little():
    bar = fragments.usage_bar(UsageBar("CPU", 1.2, "high", "a / b"))
    assert 'width="100.0"' in bar
    assert bar.striptags() == "120 % (high)"
    assert fragments.usage_bar(None) == ""


def test_each_gpu_of_several_has_a_cell():
    cells = fragments.gpu_cells([0.5, None, 0.0])
    assert cells.count("<rect") == 3
    assert "50\u202f%, not measured, 0\u202f%" in cells
    assert " and 8 more" in fragments.gpu_cells([1.0] * 40)
    assert fragments.gpu_cells([0.5]) == ""
