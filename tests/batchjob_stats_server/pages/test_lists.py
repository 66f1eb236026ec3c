"""Lists of jobs: filters, columns, paging and download."""

import csv
import io

import pytest
import sqlalchemy as sa

from batchjob.runtime import values
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.queries.job_list import MOST_COUNTED
from tests.batchjob_stats_server.conftest import NOW, job_record
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page, svg_elements


@pytest.fixture
def listed_ids(page):
    """Ids of the jobs that ended, in a list with these filters."""

    def get_ids(who="root", /, **filters):
        document = page(who, "/jobs", **filters)
        rows = document.findall(".//table[@class]/tbody/tr[th]")
        return {element_text(row.find("th")) for row in rows}

    return get_ids


def test_name_contains_filter(listed_ids):
    assert "2" not in listed_ids(name_contains="RAI")
    assert listed_ids(name_contains="cmd") == {"2"}
    assert listed_ids(name_contains="%") == set()


def test_filters_accept_durations_sizes_and_percentages(listed_ids, page):
    assert "0f3a2b1c…" not in listed_ids(elapsed_at_least="30m")
    assert "0f3a2b1c…" in listed_ids(elapsed_at_most="1h")
    assert listed_ids(nodes_at_least="2") == set()
    for name, value in [
        ("memory_at_least", "1.5 G"),
        ("energy_at_least", "2 kWh"),
        ("cpu_efficiency_at_most", "25%"),
    ]:
        document = page("root", "/jobs", **{name: value})
        assert document.find(f".//input[@id='f-{name}']").get("value") == value
        assert value in element_text(document.find(".//ul[@class='asked']"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("elapsed_at_least", "soon", "expected a duration such as 30s, 5m or 1h30m"),
        ("memory_at_least", "much", "expected a size such as 4000M"),
        ("energy_at_least", "5 eV", "expected an energy such as"),
        ("cpu_efficiency_at_most", "a%", "expected a fraction such as 0.25 or 25%"),
    ],
)
def test_invalid_filter_value_is_explained(page, name, value, says):
    document = page("root", "/jobs", 422, **{name: value})
    assert says in element_text(document.find(".//main"))


@pytest.mark.parametrize(
    ("written", "joules"),
    [("5000", 5000.0), ("5 kJ", 5000.0), ("1.5kWh", 5.4e6), ("2 MWh", 7.2e9), (0, 0.0)],
)
def test_energy_values_are_parsed(written, joules):
    assert values.energy(written) == pytest.approx(joules)


def test_presets_link_to_lists(page, proxy_client):
    document = page("root", "/jobs")
    presets = {
        element_text(each): each.get("href")
        for each in document.findall(".//nav[@class='presets']//li/a")
    }
    assert set(presets) == {
        "All", "Today", "Failed", "Wasteful", "With GPUs", "Idle GPUs", "Unused GPU time, 7 days"
    }  # fmt: skip
    for path in presets.values():
        again = parse_page(proxy_client("root").get(path, headers=HTML))
        current = again.findall(".//nav[@class='presets']//a[@aria-current]")
        assert [each.get("href") for each in current] == [path]


def test_chosen_columns_are_remembered(proxy_client):
    root = proxy_client("root")
    shown = parse_page(
        root.get("/jobs", params={"user": "alice", "columns": ["exit", "peak"]}, headers=HTML)
    )
    heads = {element_text(each) for each in shown.findall(".//table[@class]/thead/tr/th")}
    assert {"Exit", "Peak memory"} <= heads
    assert not heads & {"Account", "Energy", "Nodes"}
    again = parse_page(root.get("/jobs", headers=HTML))
    assert "Exit" in {element_text(each) for each in again.findall(".//table[@class]/thead/tr/th")}
    assert again.find(".//input[@value='exit']").get("checked") is not None


def test_unknown_columns_in_cookie_are_ignored(proxy_client):
    answer = proxy_client("root").get(
        "/jobs", headers={**HTML, "Cookie": "batchjob_columns=x.exit"}
    )
    assert "Exit" in {
        element_text(each) for each in parse_page(answer).findall(".//table[@class]//th")
    }
    assert proxy_client("root").get("/jobs", params={"columns": "x"}).status_code == 422


def test_list_downloads_as_csv(page, proxy_client):
    document = page("alice", "/mine", name_contains="train", started_from="2026-01-01")
    (path,) = [each.get("href") for each in document.iter("a") if each.get("download")]
    rows = list(csv.DictReader(io.StringIO(proxy_client("alice").get(path).text)))
    assert {row["user"] for row in rows} == {"alice"}
    assert {"1", "5", "7"} <= {row["jobid"] for row in rows}


def test_gpu_cells(example_page):
    document = parse_page(example_page("/jobs?gpus_at_least=2&limit=20"))
    cells = svg_elements(document, "cells")
    assert cells
    assert any(each.get("aria-label").startswith("Use of its GPUs: ") for each in cells)


def test_search_matches_part_of_job_name(proxy_client):
    answer = proxy_client("root").get("/search", params={"q": "trai"}, follow_redirects=False)
    assert answer.headers["location"] == "/jobs?name_contains=trai"


def test_embedded_list_limits_pending_jobs_to_leave_room_for_ended_ones(page, services):
    waits = {"start_time": None, "end_time": None, "elapsed_seconds": None}
    waiting = tuple(job_record(f"10{n}", state=JobState.PENDING, **waits) for n in range(30))
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(waiting, (), "", 0), "s")
    states = [
        element_text(row.find("td[2]")) for row in page("alice", "/embed/jobs").findall(".//tr")[1:]
    ]
    assert sum(state.startswith("pending") for state in states) == 10
    assert states.count("completed") == 5


def test_job_that_ends_during_the_request_is_listed_once(page, services):
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    running = job_record("777", state=JobState.RUNNING, start_time=NOW - 600, end_time=None)
    store.write(Batch((running,), (), "", 0), "s")

    def end_job_after_running_query(_db, _cursor, statement, *_):
        if "IN ('RUNNING'" in statement:
            ended = job_record("777", state=JobState.COMPLETED, start_time=NOW - 600, end_time=NOW)
            store.write(Batch((ended,), (), "", 0), "s")

    sa.event.listen(services.reader, "after_cursor_execute", end_job_after_running_query)
    document = page("alice", "/jobs")
    shown = [
        (element_text(section.find(".//h2")).split()[0], element_text(row.find("th")))
        for section in document.iter("tbody")
        for row in section.findall("tr[th]")
    ]
    assert [section for section, jobid in shown if jobid == "777"] == ["Ended"]


@pytest.mark.parametrize(
    ("heading", "state", "times"),
    [
        ("Running", JobState.RUNNING, {"start_time": NOW - 600, "end_time": None}),
        ("Waiting", JobState.PENDING, {"start_time": None, "end_time": None}),
    ],
)
def test_all_running_and_pending_jobs_are_reached_by_paging(
    proxy_client, services, heading, state, times
):
    listed_jobs = tuple(
        job_record(
            f"10{n}", state=state, submit_time=NOW - 900 - n // 4, elapsed_seconds=None, **times
        )
        for n in range(120)
    )
    store = Store(services.writer, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(listed_jobs, (), "", 0), "s")
    path, pages = "/jobs?user=alice", []
    while path:
        document = parse_page(proxy_client("vera").get(path, headers=HTML))
        sections = {
            element_text(each.find(".//h2")).split()[0]: each for each in document.iter("tbody")
        }
        assert not pages or list(sections) == [heading]
        pages.append([element_text(row.find("th")) for row in sections[heading].findall("tr[th]")])
        link = sections[heading].find(".//a[@rel='next']")
        path = link.get("href") if link is not None else None
    found = [jobid for page in pages for jobid in page]
    assert len(pages[0]) == 50
    assert len(found) == len(set(found))
    assert {each.jobid for each in listed_jobs} <= set(found)


def test_empty_list_says_so(page):
    document = page("bob", "/jobs", state="PENDING")
    assert "No job matches the filters." in element_text(document.find(".//main"))


def counts(document):
    """Title of each section, and the number of jobs that it tells."""
    heads = document.findall(".//tbody//h2")
    return {element_text(each).split()[0]: element_text(each.find("small")) for each in heads}


def test_list_tells_how_many_jobs_there_are(page, database_url, now):
    assert counts(page("root", "/jobs"))["Ended"] == "7"
    assert counts(page("root", "/jobs", limit=2))["Ended"] == "2 of 7"
    assert counts(page("root", "/jobs", limit=2, name_contains="train"))["Ended"] == "2 of 6"
    many = [job_record(f"9{each}", start_time=now - each) for each in range(MOST_COUNTED)]
    store = Store(writer_engine(parse_url(database_url)), "c1", UsagePolicy(), clock=lambda: now)
    store.write(Batch(many, (), "", 0), "s")
    assert counts(page("root", "/jobs"))["Ended"] == "50 of more than 1 000 Count all"
    assert counts(page("root", "/jobs", exact="true"))["Ended"] == "50 of 1 007"


@pytest.fixture
def array_of_three(database_url, now):
    """Array 60 of alice: a task runs, one has failed, one waits."""
    fields = (
        {"state": JobState.RUNNING, "end_time": None, "start_time": now - 50},
        {"state": JobState.FAILED, "start_time": now - 900, "end_time": now - 100},
        {"state": JobState.PENDING, "start_time": None, "end_time": None, "elapsed_seconds": None},
    )
    tasks = [
        job_record(f"{60 + index}", array_jobid="60", array_index=index, **each)
        for index, each in enumerate(fields)
    ]
    store = Store(writer_engine(parse_url(database_url)), "c1", UsagePolicy(), clock=lambda: now)
    store.write(Batch(tasks, (), "", 0), "s")


def rows_by_id(document):
    rows = document.findall(".//tbody/tr[th]")
    return {element_text(row.find("th")): row for row in rows}


def test_array_is_one_row_that_links_to_a_page_of_its_tasks(page, array_of_three):
    rows = rows_by_id(page("root", "/jobs"))
    assert not rows.keys() & {"60_0", "60_1", "60_2"}
    row = rows["60[]"]
    assert element_text(row.find("td[@data-label='State']")) == "1 pending 1 running 1 failed"
    assert "each task" in element_text(row.find("td[@data-label='CPUs']"))
    assert row.find(".//input") is None  # only tasks can be compared
    address = row.find("th/a").get("href")
    assert address == "/jobs?array_jobid=60&cluster=c1"
    tasks = page("root", "/jobs", array_jobid="60", cluster="c1")
    assert rows_by_id(tasks).keys() == {"60_0", "60_1", "60_2"}
    assert "Array 60 of alice on c1: 1 pending 1 running 1 failed" in element_text(
        tasks.find(".//main")
    )


def test_tasks_are_rows_where_a_filter_is_for_tasks(page, array_of_three):
    assert "60_1" in rows_by_id(page("root", "/jobs", state="FAILED"))
    assert "60_2" in rows_by_id(page("root", "/jobs", state="PENDING"))
    assert "60_0" in rows_by_id(page("root", "/jobs", running="true"))


def test_id_of_an_array_finds_its_page(proxy_client, array_of_three):
    answer = proxy_client("root").get("/search", params={"q": "60"}, follow_redirects=False)
    assert answer.headers["location"] == "/jobs?array_jobid=60&cluster=c1"
