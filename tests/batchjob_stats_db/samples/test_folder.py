"""Sample folders: names, lookup by job id, deletion and retention."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.local_runs.directory import RUNS, SAMPLES, create_directory
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.samples.folder import (
    delete_job,
    files_of,
    find_jobid,
    folder_of,
    folders,
    jobid_of,
    samples_problem,
)
from batchjob_stats_db.samples.recorder import expire
from batchjob_stats_db.samples.writer import Writer

DAY = 86400.0


def write_sample(samples, jobid, at=0.0, user="alice"):
    file = Writer(folder_of(samples, jobid), SampleHeader("slurm", jobid, user, "n001", 5.0), at)
    file.write(JobSample(at, {SampleKey("threads"): 1.0}))
    file.close()
    os.utime(file.path, (at, at))
    return file.path


def test_directory_without_jobs_is_a_problem_unless_it_is_new_in_a_data_directory(tmp_path):
    configured = create_directory(tmp_path / "elsewhere", SAMPLES)
    assert samples_problem(configured) == f"{configured}: it contains samples of no job"
    own = create_directory(tmp_path / "data", SAMPLES)
    create_directory(tmp_path / "data", RUNS)
    assert samples_problem(own) == ""
    own.rmdir()
    assert samples_problem(own) == f"{own}: No such file or directory"


@pytest.mark.parametrize(
    ("jobid", "name"),
    [
        ("123", "123"),
        ("2[1].pbs01", "2[1].pbs01"),
        ("7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa", "7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("..", "%2E."),
        (".", "%2E"),
        ("a/b\n", "a%2Fb%0A"),
        ("100%", "100%25"),
    ],
)
def test_folder_name_of_an_id(tmp_path, jobid, name):
    assert folder_of(tmp_path, jobid) == tmp_path / name
    assert jobid_of(tmp_path / name) == jobid


@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_every_id_has_a_separate_folder(tmp_path_factory, one, two):
    samples = tmp_path_factory.getbasetemp() / "samples"
    folder = folder_of(samples, one)
    assert folder.parent == samples
    assert len(os.fsencode(folder.name)) < 256
    assert "/" not in folder.name
    assert "\0" not in folder.name
    assert (folder == folder_of(samples, two)) == (one == two)


def test_long_id_is_read_from_the_file_headers(tmp_path):
    jobid = "ü" * 120
    write_sample(tmp_path, jobid)
    assert [jobid_of(each) for each in folders(tmp_path)] == [jobid]
    assert find_jobid(tmp_path, "üü") == jobid


def test_unique_prefix_of_an_id(tmp_path):
    for jobid in ("12", "123", "7b1e6a3c-aaaa", "7b1e6a3c-bbbb"):
        write_sample(tmp_path, jobid)
    assert find_jobid(tmp_path, "12") == "12"
    assert find_jobid(tmp_path, "7b1e6a3c-a") == "7b1e6a3c-aaaa"
    with pytest.raises(ValueError, match="2 jobs: 7b1e6a3c-aaaa, 7b1e6a3c-bbbb"):
        find_jobid(tmp_path, "7b")
    with pytest.raises(ValueError, match="no samples of a job '9'"):
        find_jobid(tmp_path, "9")
    with pytest.raises(ValueError, match="no samples"):
        find_jobid(tmp_path / "nowhere", "1")


def test_delete_job(tmp_path):
    write_sample(tmp_path, "1")
    assert delete_job(tmp_path, "1")
    assert not delete_job(tmp_path, "1")
    assert not folders(tmp_path)


def remaining_jobids(samples):
    return [folder.name for folder in folders(samples)]


def test_old_samples_expire_except_those_of_running_jobs(tmp_path):
    for day in range(5):
        write_sample(tmp_path, str(day), day * DAY)
    running = [folder_of(tmp_path, "0")]
    assert expire(tmp_path, 5 * DAY, 3 * DAY, 0, running) == 1
    assert remaining_jobids(tmp_path) == ["0", "2", "3", "4"]


def test_size_limit_keeps_the_newest(tmp_path):
    for day in range(5):
        write_sample(tmp_path, str(day), day * DAY)
    file_bytes = next(iter(files_of(folder_of(tmp_path, "0")))).stat().st_blocks * 512
    assert expire(tmp_path, 5 * DAY, 0, 3 * file_bytes, [folder_of(tmp_path, "1")]) == 2
    assert remaining_jobids(tmp_path) == ["1", "3", "4"]
    assert expire(tmp_path, 5 * DAY, 0, 0, []) == 0


def test_job_expires_as_a_whole_by_its_last_file(tmp_path):
    write_sample(tmp_path, "1", 0)
    write_sample(tmp_path, "1", 9 * DAY)
    assert expire(tmp_path, 10 * DAY, 5 * DAY, 0, []) == 0
    assert expire(tmp_path, 15 * DAY, 5 * DAY, 0, []) == 1
