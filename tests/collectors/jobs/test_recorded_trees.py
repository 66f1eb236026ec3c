"""Job metrics equal the values in the recorded files."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchjob_exporter import exposition
from collectors.jobs import collector

PREFIX = "batchjob_job_"


@pytest.fixture
def scrape_tree(unpacked):
    """All samples of a recorded machine: (name without prefix, labels without manager) → value."""

    def scrape(name, **options):
        jobs = collector.JobsCollector(unpacked(name), collector.JobsOptions(**options))
        jobs.update()
        text = exposition.render(jobs.collect()).decode()
        jobs.stop()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(v for k, v in sample.labels.items() if k not in ("manager", "user"))
                key = (sample.name.removeprefix(PREFIX), *labels)
                assert key not in found, "a series twice makes Prometheus drop the scrape"
                found[key] = sample.value
        return found

    return scrape


def read_file(host, *path):
    with open("/".join([host.cgroupfs, *path])) as file:
        return file.read()


def parse_flat_keyed(text):
    return {line.split()[0]: int(line.split()[1]) for line in text.splitlines()}


def test_slurm_job_metrics_match_cgroup_v2_files(scrape_tree, unpacked):
    host, numbers = unpacked("slurm-24.11-v2-r1-a"), scrape_tree("slurm-24.11-v2-r1-a")
    job = "system.slice/node01_slurmstepd.scope/job_2"
    cpu = parse_flat_keyed(read_file(host, job, "cpu.stat"))
    memory = parse_flat_keyed(read_file(host, job, "memory.stat"))
    assert numbers["cpu_seconds_total", "2", "user"] == cpu["user_usec"] / 1e6
    assert numbers["cpu_seconds_total", "2", "system"] == cpu["system_usec"] / 1e6
    assert numbers["memory_current_bytes", "2"] == int(read_file(host, job, "memory.current"))
    assert numbers["memory_peak_bytes", "2"] == int(read_file(host, job, "memory.peak"))
    assert numbers["memory_limit_bytes", "2"] == 700 * 2**20
    assert numbers["memory_anon_bytes", "2"] == memory["anon"]
    assert numbers["memory_shmem_bytes", "2"] == memory["shmem"]
    assert numbers["page_faults_total", "2", "major"] == memory["pgmajfault"]
    assert numbers["page_faults_total", "2", "minor"] == memory["pgfault"] - memory["pgmajfault"]
    pressure_line = read_file(host, job, "cpu.pressure").splitlines()[0]
    waiting_seconds = numbers["pressure_waiting_seconds_total", "2", "cpu"]
    assert waiting_seconds == int(pressure_line.rpartition("=")[2]) / 1e6


def test_io_is_per_device_if_the_controller_is_enabled(scrape_tree):
    numbers = scrape_tree("slurm-24.11-v2-r3-b")
    assert numbers["io_written_bytes_total", "26", "259:0"] == 25165824
    assert not [key for key in numbers if key[0].startswith("io_") and key[1] == "25"]


def test_job_below_two_slurm_roots_is_summed(scrape_tree, unpacked):
    name = "slurm-22.05-v1-05-multistep-2nodes-gpu"
    host, numbers = unpacked(name), scrape_tree(name)
    job_directories = [f"slurm_node00{n}/uid_20001/job_11" for n in (1, 3)]
    cpu_nanoseconds = [
        int(read_file(host, "cpuacct", path, "cpuacct.usage")) for path in job_directories
    ]
    seconds = [numbers["cpu_seconds_total", "11", mode] for mode in ("user", "system")]
    assert sum(seconds) == pytest.approx(sum(cpu_nanoseconds) / 1e9)
    peaks = [
        int(read_file(host, "memory", p, "memory.max_usage_in_bytes")) for p in job_directories
    ]
    assert numbers["memory_peak_bytes", "11"] == sum(peaks)
    assert numbers["memory_limit_bytes", "11"] == 2 * 500 * 2**20
    assert numbers["cpus", "11"] == 4


def test_pbs_array_subjobs_keep_their_ids(scrape_tree):
    numbers = scrape_tree("openpbs-23.06-v1-03-array-subjobs")
    assert ("cpu_seconds_total", "2[0].pbs01", "user") in numbers
    assert ("cpu_seconds_total", "2[1].pbs01", "user") in numbers


def test_directories_without_processes_are_not_jobs(scrape_tree):
    numbers = scrape_tree("slurm-22.05-v1-09-batch2-hetjob-gpus-and-stale-empty-dirs")
    assert not [key for key in numbers if key[1:2] in (("29",), ("30",))]


def test_job_is_shown_after_slurmstepd_was_killed(scrape_tree):
    numbers = scrape_tree("slurm-22.05-v1-08-orphaned-after-slurmstepd-kill")
    assert ("cpu_seconds_total", "29", "user") in numbers


def test_oom_kill_in_a_step_is_counted_for_the_job(scrape_tree):
    assert scrape_tree("slurm-24.11-v2-r2-a")["oom_kills_total", "23"] == 1


def test_het_job_component_keeps_its_own_id(scrape_tree):
    """In a step over both components, its processes have SLURM_JOB_ID=18."""
    numbers = scrape_tree("slurm-24.11-v2-r2-a")
    assert ("cpu_seconds_total", "18", "user") in numbers
    assert ("cpu_seconds_total", "19", "user") in numbers


@pytest.mark.parametrize("name", ["slurm-24.11-v2-r1-a", "openpbs-23.06-v1-01-two-jobs"])
def test_default_metrics_are_at_most_thirty_series_per_job(scrape_tree, name):
    counts = {}
    for key in scrape_tree(name):
        if key[0] not in ("batchjob_jobs", "batchjob_jobs_ignored", "read_errors_total"):
            counts[key[1]] = counts.get(key[1], 0) + 1
    assert max(counts.values()) <= 30


def test_metric_groups_can_be_selected(scrape_tree):
    names = {key[0] for key in scrape_tree("slurm-24.11-v2-r1-a", metrics=("cpu",))}
    assert "cpu_seconds_total" in names
    assert "memory_current_bytes" not in names
