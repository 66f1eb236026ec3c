"""Citizens whose numbers would reach a column or a loop."""

import itertools

from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.measure import job_usage
from batchjob_stats_db.timeseries.base import SeriesValue
from tests.security.citizens.citizen import citizen, own_job
from tests.security.one_bad_citizen import ROUND_SECONDS, series_labels

NUMBERS = [1e300, -1e300, 2.0**63, -1.0, 1e19, float("nan"), float("inf"), -float("inf")]
NUMBER = "number"


@citizen(NUMBER)
def node_reports_impossible_numbers(site, dice):
    job, value = own_job(site), dice.choice(NUMBERS)
    site.write_json_line(site.json_record(job))

    def lie(jobid):
        if jobid == job.jobid:
            labels = series_labels(job, job.nodes[0], mode="user", component="host", provider="x")
            for statistic, names in job_usage.METRICS.items():
                for metric in names:
                    yield statistic, SeriesValue(metric, labels, value)

    site.nodes.lies = [lie]


@citizen(NUMBER)
def node_reports_impossible_emissions(site, dice):
    """Sums of an account stay finite."""
    job, value = own_job(site), dice.choice(NUMBERS)
    site.write_json_line(site.json_record(job))

    def lie(jobid):
        if jobid == job.jobid:
            labels = series_labels(job, job.nodes[0], provider="x")
            yield Statistic.TOTAL, SeriesValue(EMISSIONS_GRAMS.metric.name, labels, value)
            for node, kind in itertools.product(job.nodes, ("active", "idle")):
                labels = series_labels(job, node, component="host", kind=kind)
                yield Statistic.TOTAL, SeriesValue(ENERGY_JOULES.metric.name, labels, 1000.0)

    site.nodes.lies = [lie]
    site.now += ROUND_SECONDS
    site.poll()
    answer = site.get("vera", "/api/v1/usage/emissions?since=1775260800")
    assert answer.status_code == 200, answer.text
    grams = [row["grams"] for row in answer.json()]
    assert all(each is not None and 0 <= each < 1e13 for each in grams)


@citizen(NUMBER)
def record_of_a_run_of_centuries(site, dice):
    job = own_job(site)
    site.write_json_line(
        site.json_record(
            job,
            submit_time=dice.choice([1, 10_000, 700_000_000]),
            start_time=dice.choice([1, 2]),
            end_time=dice.choice([2**33, 2**35, 2**39]),
            elapsed_seconds=None,
        )
    )


@citizen(NUMBER)
def record_that_began_in_1990(site, dice):
    start = dice.randrange(631_152_001, 900_000_000)
    site.write_json_line(
        site.json_record(own_job(site), submit_time=start, start_time=start, elapsed_seconds=None)
    )


@citizen(NUMBER)
def record_with_numbers_that_no_column_holds(site, dice):
    number = dice.choice([2**62, 2**63 - 1, 2**63, 2**64, 2**200, 1e300, -1])
    names = (
        "allocated_cpus",
        "priority",
        "energy_joules",
        "requested_memory_bytes",
        "exit_code",
        "time_limit_seconds",
        "uid",
        "run",
        "elapsed_seconds",
    )
    fields = dict.fromkeys(dice.sample(names, dice.randrange(1, 5)), number) | {
        "allocated_cpus": number
    }
    site.write_json_line(site.json_record(own_job(site), **fields))
    site.write_json_line(
        site.json_record(own_job(site), nodes=[{"node": "n199", "cpus": number, "gpus": number}])
    )


@citizen(NUMBER)
def record_of_the_far_future(site, dice):
    times = {
        name: site.now + dice.randrange(10**5, 10**12)
        for name in ("submit_time", "start_time", "end_time", "expected_start_time")
    }
    site.write_json_line(site.json_record(own_job(site), **times))
