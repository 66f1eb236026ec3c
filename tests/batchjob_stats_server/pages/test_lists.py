"""Lists of jobs: what they can be narrowed to, which columns they have, and the same as a file."""

import csv
import io

import pytest
import sqlalchemy as sa

from batchjob.runtime import values
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.store import Store, UsagePolicy
from tests.batchjob_stats_server.conftest import NOW, record
from tests.batchjob_stats_server.pages.conftest import HTML, drawings, parsed, words


@pytest.fixture
def ids(page):
    """Ids of the jobs that ended, in a list with these filters."""

    def asked(who="root", /, **filters):
        document = page(who, "/jobs", **filters)
        rows = document.findall(".//table[@class]/tbody/tr")
        return {words(row.find("th")) for row in rows}

    return asked


def test_a_part_of_a_name(ids):
    assert "2" not in ids(name_contains="RAI")
    assert ids(name_contains="cmd") == {"2"}
    assert ids(name_contains="%") == set()


def test_durations_sizes_and_parts_as_people_write_them(ids, page):
    assert "0f3a2b1c…" not in ids(elapsed_at_least="30m")
    assert "0f3a2b1c…" in ids(elapsed_at_most="1h")
    assert ids(nodes_at_least="2") == set()
    for name, value in [
        ("memory_at_least", "1.5 G"),
        ("energy_at_least", "2 kWh"),
        ("cpu_efficiency_at_most", "25%"),
    ]:
        document = page("root", "/jobs", **{name: value})
        assert document.find(f".//input[@id='f-{name}']").get("value") == value
        assert value in words(document.find(".//ul[@class='asked']"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("elapsed_at_least", "soon", "expected a duration such as 30s, 5m or 1h30m"),
        ("memory_at_least", "much", "expected a size such as 4000M"),
        ("energy_at_least", "5 eV", "expected an energy such as"),
        ("cpu_efficiency_at_most", "a%", "expected a fraction such as 0.25 or 25%"),
    ],
)
def test_what_cannot_be_read_is_told(page, name, value, says):
    document = page("root", "/jobs", 422, **{name: value})
    assert says in words(document.find(".//main"))


@pytest.mark.parametrize(
    ("written", "joules"),
    [("5000", 5000.0), ("5 kJ", 5000.0), ("1.5kWh", 5.4e6), ("2 MWh", 7.2e9), (0, 0.0)],
)
def test_energies(written, joules):
    assert values.energy(written) == pytest.approx(joules)


def test_presets_lead_to_lists(page, proxied):
    document = page("root", "/jobs")
    presets = {
        words(each): each.get("href") for each in document.findall(".//nav[@class='presets']//li/a")
    }
    assert set(presets) == {"All", "Today", "Failed", "Wasteful", "With GPUs", "Idle GPUs"}
    for path in presets.values():
        again = parsed(proxied("root").get(path, headers=HTML))
        current = again.findall(".//nav[@class='presets']//a[@aria-current]")
        assert [each.get("href") for each in current] == [path]


def test_columns_are_chosen_and_kept(proxied):
    carol = proxied("root")
    shown = parsed(
        carol.get("/jobs", params={"user": "alice", "columns": ["exit", "peak"]}, headers=HTML)
    )
    heads = {words(each) for each in shown.findall(".//table[@class]/thead/tr/th")}
    assert {"Exit", "Peak memory"} <= heads
    assert not heads & {"Account", "Energy", "Nodes"}
    again = parsed(carol.get("/jobs", headers=HTML))
    assert "Exit" in {words(each) for each in again.findall(".//table[@class]/thead/tr/th")}
    assert again.find(".//input[@value='exit']").get("checked") is not None


def test_columns_nobody_knows_are_passed_over(proxied):
    answer = proxied("root").get("/jobs", headers={**HTML, "Cookie": "batchjob_columns=x.exit"})
    assert "Exit" in {words(each) for each in parsed(answer).findall(".//table[@class]//th")}
    assert proxied("root").get("/jobs", params={"columns": "x"}).status_code == 422


def test_the_list_as_a_file(page, proxied):
    document = page("alice", "/", name_contains="train", started_from="2026-01-01")
    (path,) = [each.get("href") for each in document.iter("a") if each.get("download")]
    rows = list(csv.DictReader(io.StringIO(proxied("alice").get(path).text)))
    assert {row["user"] for row in rows} == {"alice"}
    assert {"1", "5", "7"} <= {row["jobid"] for row in rows}


def test_a_cell_for_each_gpu_and_lines_of_memory_and_gpus(example):
    document = parsed(example("/jobs?gpus_at_least=2&limit=20"))
    cells = drawings(document, "cells")
    assert cells
    assert any(each.get("aria-label").startswith("Use of its GPUs: ") for each in cells)
    chosen = parsed(example("/jobs?limit=20&columns=memory_line&columns=gpu_line&gpus_at_least=1"))
    labels = " ".join(each.get("aria-label") for each in drawings(chosen, "spark"))
    assert "Memory in use between" in labels
    assert "mean of its GPUs" in labels
    assert "CPU use between" not in labels


def test_a_search_finds_parts_of_names(proxied):
    answer = proxied("root").get("/search", params={"q": "trai"}, follow_redirects=False)
    assert answer.headers["location"] == "/jobs?name_contains=trai"


def test_a_long_queue_leaves_room_for_ended_jobs_in_the_small_page(page, services):
    waits = {"start_time": None, "end_time": None, "elapsed_seconds": None}
    waiting = tuple(record(f"10{n}", state=JobState.PENDING, **waits) for n in range(30))
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(waiting, (), "", 0), "s")
    states = [words(row.find("td[2]")) for row in page("alice", "/embed/jobs").findall(".//tr")[1:]]
    assert sum(state.startswith("pending") for state in states) == 10
    assert states.count("completed") == 5


def test_a_job_that_ends_while_the_page_is_read_is_shown_once(page, services):
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    running = record("777", state=JobState.RUNNING, start_time=NOW - 600, end_time=None)
    store.write(Batch((running,), (), "", 0), "s")

    def after_the_running_ones(_db, _cursor, _statement, parameters, *_):
        if "RUNNING" in str(parameters):
            ended = record("777", state=JobState.COMPLETED, start_time=NOW - 600, end_time=NOW)
            store.write(Batch((ended,), (), "", 0), "s")

    sa.event.listen(services.reader, "after_cursor_execute", after_the_running_ones)
    document = page("alice", "/jobs")
    shown = [
        (words(section.find(".//h2")).split()[0], words(row.find("th")))
        for section in document.iter("section")
        for row in section.findall(".//tbody/tr")
    ]
    assert [section for section, jobid in shown if jobid == "777"] == ["Ended"]


@pytest.mark.parametrize(
    ("heading", "state", "times"),
    [
        ("Running", JobState.RUNNING, {"start_time": NOW - 600, "end_time": None}),
        ("Waiting", JobState.PENDING, {"start_time": None, "end_time": None}),
    ],
)
def test_all_jobs_that_run_or_wait_are_reached(proxied, services, heading, state, times):
    some = tuple(
        record(f"10{n}", state=state, submit_time=NOW - 900 - n // 4, elapsed_seconds=None, **times)
        for n in range(120)
    )
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(some, (), "", 0), "s")
    path, pages = "/jobs?user=alice", []
    while path:
        document = parsed(proxied("vera").get(path, headers=HTML))
        sections = {words(each.find(".//h2")).split()[0]: each for each in document.iter("section")}
        assert not pages or list(sections) == [heading]
        pages.append([words(row.find("th")) for row in sections[heading].findall(".//tbody/tr")])
        link = sections[heading].find(".//a[@rel='next']")
        path = link.get("href") if link is not None else None
    found = [jobid for page in pages for jobid in page]
    assert len(pages[0]) == 50
    assert len(found) == len(set(found))
    assert {each.jobid for each in some} <= set(found)


def test_a_list_of_nothing_says_so(page):
    document = page("bob", "/jobs", state="PENDING")
    assert "No job matches the filters." in words(document.find(".//main"))
