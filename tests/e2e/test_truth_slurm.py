"""The table of truth: unusual jobs on a real Slurm, at all moments, in all places.

The kernel says what a job used, Slurm's accounting what became of it, the exporters' last totals
how many bytes and joules it had. Each place must show this, or say that it does not know.
"""

import contextlib
import json
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.e2e import prometheus, slurm, truth_jobs, truth_site
from tests.e2e.truth_jobs import KINDS, MIB, Truth, Watcher
from tests.e2e.truth_site import (
    JOB_PLACES,
    LIVE,
    PLACES,
    SCRAPE,
    Row,
    Shown,
    Site,
    live_cpu_use,
)
from tests.helpers.waiting import scaled

pytestmark = pytest.mark.e2e

POLL = 5  # seconds that a poll may take on a busy machine
LINGER, LAST = 30, 90  # seconds after the end: of series, and in which all rows become final
CONF = "SlurmdTimeout=60\n"
TICKS = 0.2  # seconds: clock ticks, the time from a scrape's timestamp to its values, our readings
PAGES = 0.0051  # rounding of pages
CACHE = 1 << 20  # bytes that the kernel keeps for the user on a node, beside the job
MOVES = (
    "update_time", "usage_measured_time", "usage_due_time", "window_from", "window_to", "priority",
)  # fmt: skip


class Look(NamedTuple):
    """What the list said at a time, of one row."""

    time: float
    row: Row
    true_cpu_seconds: float | None  # until the time that the row names
    live: tuple[float, float] | None = None  # when job-live was asked, and its CPU use


class Lives(NamedTuple):
    """What was seen."""

    site: Site
    ids: Mapping[str, str]  # by user
    truths: Mapping[str, Truth]
    looks: Mapping[str, list[Look]]  # by key of the row
    differences: list[str]
    exported: Mapping[str, Mapping[str, float]]  # last totals of a kind, by raw id
    metered: tuple[Mapping[str, float], Mapping[str, float]]  # node energy and meter at the end
    compared: int

    def runs(self, jobid: str) -> int:
        """The number of runs of an id."""
        return sum(looks[-1].row["jobid"] == jobid for looks in self.looks.values())


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Iterator[Lives]:
    if not long_form:
        pytest.skip("only with --long: minutes of jobs")
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    with contextlib.ExitStack() as made:
        folder = tmp_path_factory.mktemp("truth")
        site = made.enter_context(truth_site.running(folder, list(KINDS), CONF))
        truths = {user: Truth(site.slurm, user) for user in KINDS}
        made.enter_context(Watcher(truths))
        yield _watch(site, truths)


def _watch(site: Site, truths: Mapping[str, Truth]) -> Lives:
    looks: dict[str, list[Look]] = defaultdict(list)
    differences: list[str] = []
    compared = 0
    ids: dict[str, str] = {}
    threads = []
    for user, kind in KINDS.items():
        ids[user] = site.slurm.submit(user, kind.script, *kind.options)
        threads.append(threading.Thread(target=_act, args=(site, user, ids[user], differences)))
        threads[-1].start()
    ended_at, number = 0.0, 0
    deadline = time.monotonic() + scaled(900)
    while time.monotonic() < deadline:
        running = site.slurm.command("squeue", "-h", "--format=%u %T").splitlines()
        compared += _look(site, truths, looks, differences, number)
        number += 1
        if not running and not ended_at:
            ended_at = time.monotonic()
        since_end = time.monotonic() - ended_at if ended_at else 0.0
        if since_end > scaled(LAST) or (since_end > LINGER + 2 * SCRAPE and _are_final(looks)):
            break
        time.sleep(1)
    for thread in threads:
        thread.join(scaled(10))
    compared += _look_at_all(site, looks, differences)
    exported = {name: truth_site.exported(site, name) for name in truth_site.EXPORTED}
    metered = (truth_site.consumed(site), dict(site.metered))
    return Lives(site, ids, truths, looks, differences, exported, metered, compared)


def _are_final(looks: Mapping[str, list[Look]]) -> bool:
    rows = [each[-1].row for each in looks.values()]
    rows = [row for row in rows if row["state"] != "RESIZED"]  # late samples of it may come
    return all(row["end_time"] and (row["usage_final"] or not row["start_time"]) for row in rows)


def _act(site: Site, user: str, jobid: str, differences: list[str]) -> None:
    try:
        truth_jobs.act(site.slurm, user, jobid)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        differences.append(f"what is done to {user}: {error!r}")


def _look(
    site: Site, truths: Mapping[str, Truth], looks: dict[str, list[Look]], differences: list[str],
    number: int,
) -> int:  # fmt: skip
    """Compare the places with each other, and note what the list said; how much was compared."""
    before = site.rows()
    name = list(PLACES)[number % len(PLACES)]
    shown = PLACES[name](site)
    after, now = site.rows(), time.time()
    compared = _compare(name, shown, before, after, differences)
    fresh = [
        key for key, row in after.items()
        if row["start_time"] and (not row["end_time"] or now - row["end_time"] / 1000 < 60)
    ]  # fmt: skip
    for key in fresh[number % 11 :: 11]:
        for place, view in JOB_PLACES.items():
            if place == "command, report" and _runs(after, key) > 1:
                continue  # it shows the latest run
            one = {key: view(site, after[key])}
            later = site.rows()
            compared += _compare(place, one, after, later, differences)
            after = later
    measured = [key for key in fresh if after[key]["usage_samples"] and not after[key]["end_time"]]
    for key, row in after.items():
        if row["user"] not in truths:
            continue
        true = None
        until_time = row["usage_until_time"]
        if row["usage_samples"] and until_time:
            true = truths[row["user"]].cpu_seconds_at(until_time / 1000)
        live = live_cpu_use(site, row) if key in measured[number % 2 :: 2] else None
        looks[key].append(Look(now, row, true, live))
    return compared


def _look_at_all(site: Site, looks: Mapping[str, list[Look]], differences: list[str]) -> int:
    """Compare every place once more when nothing changes any longer."""
    rows, compared = site.rows(), 0
    for name, place in PLACES.items():
        compared += _compare(name, place(site), rows, rows, differences)
    for key, row in rows.items():
        for name, view in JOB_PLACES.items():
            if name == "command, report" and _runs(rows, key) > 1:
                continue
            compared += _compare(name, {key: view(site, row)}, rows, rows, differences)
    for key in looks:
        looks[key].append(looks[key][-1]._replace(time=time.time(), row=rows[key]))
    return compared


def _runs(rows: Mapping[str, Row], key: str) -> int:
    return sum(row["jobid"] == rows[key]["jobid"] for row in rows.values())


def _compare(
    place: str, shown: Shown, before: Mapping[str, Row], after: Mapping[str, Row],
    differences: list[str],
) -> int:  # fmt: skip
    """Each value must be the list's of before or after, or between them."""
    compared = 0
    started = {
        f"{row['jobid']} started {row['start_time'] // 1000}": key
        for key, row in after.items()
        if row["start_time"]
    }
    for shown_key, values in shown.items():
        key = started.get(shown_key, shown_key)
        if key not in before or key not in after:
            continue
        for name, value in values.items():
            if name.removesuffix("_rfc3339") in MOVES or name not in before[key]:
                continue
            if name == "usage_until_time" and not before[key]["usage_samples"]:
                continue
            compared += 1
            bounds = (before[key][name], after[key][name])
            if not _is_between(
                value, bounds, PAGES if place.startswith(("page", "command, report")) else 1e-9
            ):
                user = before[key]["user"]
                differences.append(f"{place}, {user} {key}: {name} {value!r}, list {bounds}")
    return compared


def _is_between(value: Any, bounds: tuple[Any, Any], tolerance: float) -> bool:
    if any(str(value) == str(bound) for bound in bounds) or value in bounds:
        return True
    if value in ("", None):
        return any(bound in ("", None) for bound in bounds)
    try:
        numbers = [float(bound) for bound in bounds if bound is not None]
        return (
            bool(numbers) and min(numbers) - tolerance <= float(value) <= max(numbers) + tolerance
        )
    except (TypeError, ValueError):
        return False


# --- What must hold.


def test_places_show_one_value(lives: Lives) -> None:
    print(f"{lives.compared} values compared")
    assert not lives.differences, "\n".join(lives.differences[:60])


def test_running_jobs_are_right_at_the_time_that_they_name(lives: Lives) -> None:
    wrong, errors = [], []
    for looks in lives.looks.values():
        for look in looks:
            row, true = look.row, look.true_cpu_seconds
            if row["end_time"] or true is None or row["array_jobid"] or row["het_jobid"]:
                continue
            if row["restarts"]:
                continue
            shown = row["cpu_used_seconds"] or 0.0
            at = row["usage_until_time"] / 1000
            truth = lives.truths[row["user"]]
            before = truth.cpu_seconds_at(row["start_time"] / 1000)  # of a job's part before it
            true -= before
            low = truth.cpu_seconds_at(at - 0.5) - before
            high = truth.cpu_seconds_at(at + 1) - before
            error = max(low - shown, shown - high, 0.0)
            errors.append(error / max(true, 1.0))
            if error > 0.02 * true + TICKS:
                wrong.append(f"{row['user']}: {shown:.2f}, truly {true:.2f} of {at:.0f}")
    print(f"running: {len(errors)} looks, worst {max(errors):.4f}, 90 % {_p90(errors):.4f}")
    assert len(errors) > 50
    assert not wrong, "\n".join(wrong)


def test_dashboard_of_running_jobs_shows_what_the_kernel_counts(lives: Lives) -> None:
    """In job-live, CPU use is that of the job's time, or of its last five minutes."""
    wrong, compared = [], 0
    for looks in lives.looks.values():
        for row, live in ((look.row, look.live) for look in looks if look.live):
            if row["restarts"] or row["array_jobid"] or row["het_jobid"]:
                continue
            if row["user"] == "resized":
                continue  # the dashboard knows no parts
            (at, shown), truth = live, lives.truths[row["user"]]
            ran = at - row["start_time"] / 1000  # in whole seconds, which began earlier
            latest_scrape = truth.cpu_seconds_at(at - SCRAPE - 1)
            low = latest_scrape / (ran * row["allocated_cpus"])
            high = truth.cpu_seconds_at(at + 0.5) / (max(ran - 1.5, 0.1) * row["allocated_cpus"])
            compared += 1
            if not 0.98 * low - 0.02 <= shown <= 1.02 * high + 0.02:
                wrong.append(f"{row['user']}: {shown:.3f} at {ran:.1f} s, of {low:.3f}..{high:.3f}")
    print(f"job-live: {compared} looks")
    assert compared > 20
    assert not wrong, "\n".join(wrong)


def _p90(errors: list[float]) -> float:
    return statistics.quantiles(errors, n=10)[-1] if len(errors) > 1 else errors[0]


def test_cpu_time_is_the_kernels_one_poll_after_the_end(lives: Lives) -> None:
    wrong, errors = [], []
    for user, truth in lives.truths.items():
        keys = [key for key, looks in lives.looks.items() if looks[-1].row["user"] == user]
        ends = [lives.looks[key][-1].row["end_time"] for key in keys]
        if not keys or not all(ends):
            continue
        latest, true = max(ends) / 1000, truth.cpu_seconds()
        for moment in (latest + SCRAPE + LIVE + POLL, float("inf")):
            rows = [_row_at(lives.looks[key], moment) for key in keys]
            shown = sum(row["cpu_used_seconds"] or 0.0 for row in rows)
            errors.append(abs(shown - true) / max(true, 0.5))
            if user == "resized" and shown < true and "nodes missing" in rows[0]["usage_caveats"]:
                continue  # the last seconds of the node that it gave up
            if abs(shown - true) > 0.01 * true + 0.02:
                wrong.append(f"{user} at {moment - latest:.0f} s: {shown:.3f}, truly {true:.3f}")
    print(f"CPU time: {len(errors)}, worst {max(errors):.4f}, 90 % {_p90(errors):.4f}")
    assert not wrong, "\n".join(wrong)


def _row_at(looks: list[Look], moment: float) -> Row:
    """The first row at or after a moment; the last if there is none."""
    return next((look.row for look in looks if look.time >= moment), looks[-1].row)


def test_peak_is_the_kernels_one_poll_after_the_end(lives: Lives) -> None:
    wrong, errors = [], []
    for user, truth in lives.truths.items():
        keys = [key for key, looks in lives.looks.items() if looks[-1].row["user"] == user]
        if len(keys) != 1 or not lives.looks[keys[0]][-1].row["end_time"]:
            continue
        end, true = lives.looks[keys[0]][-1].row["end_time"] / 1000, truth.peak_bytes()
        for moment in (end + SCRAPE + LIVE + POLL, float("inf")):
            row = _row_at(lives.looks[keys[0]], moment)
            if not row["start_time"]:
                continue
            shown = row["memory_used_bytes"] or 0
            errors.append(abs(shown - true) / max(true, 10 * MIB))
            if abs(shown - true) > 0.01 * true + CACHE * max(1, row["allocated_nodes"] or 1):
                wrong.append(f"{user} at {moment - end:.0f} s: {shown}, truly {true}")
    print(f"peak: {len(errors)}, worst {max(errors):.4f}, 90 % {_p90(errors):.4f}")
    assert not wrong, "\n".join(wrong)


FIELDS = (
    "JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "State", "AllocCPUS", "NodeList", "Account",
    "JobName", "ExitCode",
)  # fmt: skip


def test_end_state_and_times_are_those_of_accounting(lives: Lives) -> None:
    text = lives.site.slurm.command(
        "sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", "--noheader",
        "--delimiter=\x1f", "--starttime=now-3hours", f"--format={','.join(FIELDS)}",
    )  # fmt: skip
    wrong, compared = [], 0
    rows = {key: looks[-1].row for key, looks in lives.looks.items()}
    for line in text.splitlines():
        told = dict(zip(FIELDS, line.split("\x1f"), strict=True))
        row = rows.get(f"{told['JobIDRaw']} {told['Submit']}")
        if row is None:
            if told["Submit"] > min(key.split()[1] for key in rows):
                wrong.append(f"no row: {told}")
            continue
        shown = {
            "Start": _seconds(row["start_time"]),
            "End": _seconds(row["end_time"]),
            "ElapsedRaw": str(round(row["elapsed_seconds"] or 0)),
            "State": row["state_word"] or row["state"],
            "Account": row["account"],
            "JobName": (row["name"] or "").replace('"', "`"),  # as slurmdbd stores it
        }
        if row["user"] == "resized":
            continue  # in 22.05 its parts begin with the job
        if row["start_time"] is None and told["ElapsedRaw"] == "0":
            del shown["Start"]  # sacct prints the end of a job that never started
        for name, value in shown.items():
            compared += 1
            true = told[name].split(" by ")[0]
            if value != true and not (true in ("Unknown", "None") and value in ("", "None")):
                wrong.append(f"{row['user']} {told['JobIDRaw']}: {name} {value}, truly {true}")
    print(f"{compared} values of accounting")
    assert compared > 300
    assert not wrong, "\n".join(wrong)


def _seconds(milliseconds: int | None) -> str:
    return "" if milliseconds is None else str(milliseconds // 1000)


def test_job_has_ended_one_poll_after_its_end(lives: Lives) -> None:
    late = []
    for looks in lives.looks.values():
        row = looks[-1].row
        end = row["end_time"]
        if not end:
            continue
        found = [look for look in looks if look.time > end / 1000 + SCRAPE + LIVE + POLL]
        if found and found[0].row["end_time"] is None:
            late.append(
                f"{row['user']}: at {found[0].time - end / 1000:.0f} s {found[0].row['state']}"
            )
    assert not late, "\n".join(late)


def test_energy_is_that_of_the_exporters_and_adds_up_to_the_meters(lives: Lives) -> None:
    wrong, shown_joules = [], 0.0
    for looks in lives.looks.values():
        row = looks[-1].row
        true = lives.exported["energy"].get(row["jobid"], 0.0)
        shown = row["energy_used_joules"]
        shown_joules += shown or 0.0
        if lives.runs(row["jobid"]) > 1:
            continue  # the runs have one id
        if shown is None and true > 1 and not row["usage_caveats"]:
            wrong.append(f"{row['user']}: none, truly {true:.1f}")
        elif shown is not None and abs(shown - true) > 0.01 * true + 1:
            wrong.append(f"{row['user']}: {shown:.1f}, truly {true:.1f} ({row['usage_caveats']})")
    consumed, metered = lives.metered
    for node, joules in consumed.items():
        if abs(joules - metered[node]) > 0.02 * metered[node] + 400:
            wrong.append(f"{node}: {joules:.0f}, truly {metered[node]:.0f}")
    print(f"energy: {shown_joules:.0f} J of jobs, {sum(metered.values()):.0f} J of meters")
    assert not wrong, "\n".join(wrong)


def test_bytes_are_exact_or_marked(lives: Lives) -> None:
    wrong = []
    for looks in lives.looks.values():
        row = looks[-1].row
        shown = row["usage_process_io_written_bytes"]
        true = lives.exported["written"].get(row["jobid"], 0.0)
        if shown is not None and abs(shown - true) > 0.01 * true and lives.runs(row["jobid"]) == 1:
            wrong.append(f"{row['user']}: {shown}, of the exporters {true}")
        known = KINDS[row["user"]].written_bytes
        if known and shown is not None and shown > 1.01 * known + MIB:
            wrong.append(f"{row['user']}: {shown}, more than {known}")
        if known and (shown or 0) < 0.99 * known and row["process_io_basis"] != "at least":
            wrong.append(f"{row['user']}: {shown} of {known}, without a mark")
    assert not wrong, "\n".join(wrong)


def test_parts_of_a_resized_job_are_not_more_than_it(lives: Lives) -> None:
    rows = [looks[-1].row for looks in lives.looks.values()]
    parts = [row for row in rows if row["user"] == "resized"]
    assert sorted(row["state"] for row in parts) == ["COMPLETED", "RESIZED"]
    for name, column in (
        ("energy", "energy_used_joules"),
        ("written", "usage_process_io_written_bytes"),
    ):
        true = lives.exported[name][parts[0]["jobid"]]
        unknown = [row for row in parts if row[column] is None]  # energy needs two samples
        assert all(row["usage_coverage"] < 0.5 for row in unknown), column
        known = sum(row[column] or 0.0 for row in parts)
        assert known <= 1.001 * true, column
        assert unknown or known > 0.5 * true, column


def test_sums_are_those_of_the_rows(lives: Lives) -> None:
    of_rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for looks in lives.looks.values():
        row = looks[-1].row
        of_rows[row["user"]][0] += row["cpu_used_seconds"] or 0.0
        of_rows[row["user"]][1] += row["energy_used_joules"] or 0.0
    sums = {
        each["user"]: [
            each["cpu_seconds"], each["energy_host_joules"] + each["energy_gpu_joules"]
        ]
        for each in json.loads(lives.site.get("/api/v1/usage", by="user"))
    }  # fmt: skip
    wrong = [
        f"{user}: {sums.get(user)}, of the rows {numbers}"
        for user, numbers in of_rows.items()
        if sums.get(user, [0.0, 0.0]) != pytest.approx(numbers, rel=1e-6, abs=0.02)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_job_was_seen(lives: Lives) -> None:
    users = {looks[-1].row["user"] for looks in lives.looks.values()}
    assert users == set(KINDS), set(KINDS) - users
    assert len(lives.looks) >= 60
