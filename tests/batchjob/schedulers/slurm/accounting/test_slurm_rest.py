"""Slurm's accounting and users by slurmrestd, on recorded responses of real releases."""

import functools
import http.server
import json
import lzma
import socketserver
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError, build_section
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import SourceError, UnfinishedJob
from batchjob.schedulers.records import Administrator, Association, Role
from batchjob.schedulers.slurm.accounting.sacctmgr import Sacctmgr, SacctmgrOptions
from batchjob.schedulers.slurm.accounting.slurm_rest import SlurmRest, SlurmRestOptions
from batchjob.schedulers.slurm.accounting.slurm_rest_records import parse_jobs
from batchjob.schedulers.slurm.accounting.squeue_records import parse_json_queue, queued_jobs
from batchjob.schedulers.slurm.json_format import SlurmJsonError
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd
from batchjob.schedulers.states import JobState

RECORDINGS = Path(__file__).parents[4] / "fixtures" / "accounting"
EMPTY = {"errors": [], "warnings": [], "meta": {}}


def load_recording(release: str):
    return json.loads(lzma.decompress((RECORDINGS / f"slurm-{release}.jobs.json.xz").read_bytes()))


class SlurmrestdHandler(http.server.BaseHTTPRequestHandler):
    """Responds from `server.answers`, a dict of path below the version to document or status."""

    def do_GET(self):
        url = urlsplit(self.path)
        self.server.requests.append((url.path, parse_qs(url.query), dict(self.headers)))
        _, _, version, path = url.path.split("/", 3)
        daemon = url.path.split("/")[1]
        answers = self.server.answers
        answer = answers.get(f"{daemon}/{path}", answers.get(path, 404))
        answer = answer if version == self.server.version else 404
        status, answer = answer if isinstance(answer, tuple) else (200, answer)
        body = b"Unable to find" if isinstance(answer, int) else json.dumps(answer).encode()
        self.send_response(answer if isinstance(answer, int) else status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

    def address_string(self):
        return "test"


class UnixServer(socketserver.UnixStreamServer):
    pass


@pytest.fixture
def start_slurmrestd(tmp_path):
    """`start_slurmrestd(answers)` starts a server and returns it; its URL is in `.url`."""
    servers = []

    def start(answers, version="v0.0.42", unix=False):
        if unix:
            server = UnixServer(str(tmp_path / "rest.sock"), SlurmrestdHandler)
            server.url = f"unix:{tmp_path}/rest.sock"
        else:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlurmrestdHandler)
            server.url = f"http://127.0.0.1:{server.server_address[1]}"
        server.answers, server.version, server.requests = {"ping": EMPTY} | answers, version, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def jobs_of(release: str):
    results = list(parse_jobs("slurm_rest", "c1", load_recording(release)))
    assert not any(result.quarantined for result in results)
    return {(result.job.jobid, result.job.submit_time): result.job for result in results}


@pytest.fixture(scope="module")
def jobs_24_11():
    return {jobid: job for (jobid, _), job in jobs_of("24.11.5").items()}


@pytest.fixture(scope="module")
def jobs_22_05():
    return {jobid: job for (jobid, _), job in jobs_of("22.05.8").items()}


@pytest.mark.parametrize("jobs", ["jobs_22_05", "jobs_24_11"])
def test_jobs_of_both_releases(jobs, request):
    found = request.getfixturevalue(jobs)
    by_name = {job.name: job for job in found.values()}
    assert by_name["oomjob"].state == JobState.OUT_OF_MEMORY
    assert (by_name["oomjob"].exit_code, by_name["oomjob"].exit_signal) == (0, 125)
    gpus = by_name["gpujob"]
    assert gpus.allocated_gpus == gpus.requested_gpus == 2
    assert gpus.nodes[0].node == "node01"
    assert {step.step for step in gpus.steps} == {"batch", "extern", "0"}
    assert gpus.cpu_seconds > 40
    assert gpus.time_limit_seconds == 1800
    het = [job for job in found.values() if job.name == "hetjob"]
    assert {(job.het_jobid, job.het_offset) for job in het} == {("18", 0), ("18", 1)}
    array = [job for job in found.values() if job.name == "arr"]
    assert sorted(job.array_index for job in array) == [1, 2, 3]
    assert {job.array_jobid for job in array} == {"4"}


def test_exit_codes_of_old_releases_are_ignored(jobs_22_05, jobs_24_11):
    failed = next(job for job in jobs_22_05.values() if job.name == "failjob")
    assert (failed.state, failed.exit_code) == (JobState.FAILED, None)
    failed = next(job for job in jobs_24_11.values() if job.name == "failjob")
    assert (failed.state, failed.exit_code, failed.exit_signal) == (JobState.FAILED, 3, 0)


def test_requeued_runs_are_separate_records():
    runs = [job for (jobid, _), job in jobs_of("22.05.8").items() if jobid == "15"]
    assert {run.state for run in runs} == {JobState.REQUEUED, JobState.CANCELLED}


def test_job_cancelled_before_start(jobs_24_11):
    job = next(job for job in jobs_24_11.values() if job.name == "toobig")
    assert (job.state, job.start_time, job.exit_code) == (JobState.CANCELLED, None, None)
    assert job.cancelled_by == "root"


def test_job_that_never_started_holds_nothing(jobs_24_11):
    (raw,) = [each for each in load_recording("24.11.5")["jobs"] if each["name"] == "toobig"]
    held = [{"type": "cpu", "name": "", "id": 1, "count": 7}]
    raw = raw | {"tres": raw["tres"] | {"allocated": held}}
    (parsed,) = parse_jobs("slurm_rest", "c1", {"jobs": [raw]})
    assert (parsed.job.start_time, parsed.job.allocated_cpus) == (None, None)
    assert parsed.job == jobs_24_11["10"]


def test_row_of_a_job_in_its_first_second():
    raw = load_recording("24.11.5")["jobs"][0]
    unknown = {"start": 0, "end": 0, "elapsed": 0}
    none = {"tres": {"allocated": [], "requested": []}, "required": {"CPUs": 0}, "steps": []}
    pending = {"state": {"current": ["PENDING"], "reason": "None"}, "time": raw["time"] | unknown}
    (parsed,) = parse_jobs("slurm_rest", "c1", {"jobs": [raw | none | pending]})
    assert (parsed.job.requested_cpus, parsed.job.node_list) == (None, "")
    assert parsed.job.nodes == ()


def conf(plugin, *frequency):
    """As slurmrestd v0.0.45 answers, cut to what counts here."""
    settings = {"JobAcctGatherType": plugin, "JobAcctGatherFrequency": list(frequency)}
    return EMPTY | {"slurm_conf": settings}


@pytest.mark.parametrize(
    ("answers", "cpu_at_least", "has_memory"),
    [
        ({}, 0, True),  # before v0.0.45: HTTP 404
        ({"slurm/conf": conf("jobacct_gather/cgroup", "task=30")}, 0, True),
        ({"slurm/conf": conf("jobacct_gather/linux", "task=1", "energy=30")}, 2, True),
        ({"slurm/conf": conf("jobacct_gather/linux", "task=600")}, 2, False),
        ({"slurm/conf": EMPTY}, 0, True),
    ],
)
def test_figures_that_the_plugin_cannot_have_are_left_out_or_lower_bounds(
    start_slurmrestd, answers, cpu_at_least, has_memory
):
    """As by sacct: the CPU time of killed processes, and the sample at a step's start."""
    (raw,) = [each for each in load_recording("24.11.5")["jobs"] if each["name"] == "cancelme"]
    server = start_slurmrestd({"slurmdb/jobs": EMPTY | {"jobs": [raw]}} | answers, "v0.0.45")
    source = SlurmRest("c1", SlurmRestOptions(url=server.url))
    for _ in range(2):
        ((job, _),) = source.query_by_id(["1"])
        assert job.state == JobState.CANCELLED
        assert job.cpu_at_least == cpu_at_least
        assert job.cpu_seconds is not None
        assert (job.peak_memory_bytes is not None) == has_memory
    assert [path for path, *_ in server.requests].count("/slurm/v0.0.45/conf") == 1


def test_unset_energy_is_none_and_memory_is_bytes(jobs_24_11):
    job = jobs_24_11["6"]
    assert job.energy_joules is None
    assert job.allocated_memory_bytes == 150 * 1024**2
    assert job.stdout_path == "/home/alice/slurm-4_1.out"


def test_job_without_id_is_quarantined_alone():
    document = {"jobs": [{"name": "x"}, *load_recording("24.11.5")["jobs"][:1]]}
    bad, good = parse_jobs("slurm_rest", "c1", document)
    assert bad.job is None
    assert "expected a job id" in bad.quarantined[0].reason
    assert good.job.jobid == "1"


def every_path(value, path=()):
    """Each place in a document, as the keys that lead to it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from every_path(each, (*path, key))


STRANGE = ["INVALID", "", -1, 2**70, 1e300, float("inf"), True, None, [], {}, ["a"], "n[1-", "a,b="]


READERS = {
    "jobs": lambda jobs: parse_jobs("slurm_rest", "c1", {"jobs": jobs}),
    "queue": lambda jobs: queued_jobs("slurm_rest", "c1", parse_json_queue({"jobs": jobs})),
}


@functools.cache
def two_jobs(recording):
    """The first and the last job of a recording of 26.05.3 that is read, as text."""
    path = RECORDINGS / f"slurm-26.05.3.{recording}.json.xz"
    jobs = json.loads(lzma.decompress(path.read_bytes()))["jobs"]
    first, *_, last = [job for job in jobs if list(READERS[recording]([job]))]
    return json.dumps([first, last])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), strange=st.sampled_from(STRANGE))
@pytest.mark.parametrize("recording", READERS)
def test_strange_value_in_one_job_leaves_the_others(data, strange, recording):
    read = READERS[recording]
    damaged, other = json.loads(two_jobs(recording))
    keys = data.draw(st.sampled_from(sorted(every_path(damaged), key=str)))
    place = damaged
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = strange
    expected = [parsed.job for parsed in read([other])]
    assert expected
    assert [parsed.job for parsed in read([damaged, other])][-1:] == expected


@pytest.mark.parametrize("unix", [False, True])
def test_jobs_are_read_by_tcp_and_unix_socket(start_slurmrestd, unix):
    server = start_slurmrestd(
        {"slurmdb/jobs": load_recording("24.11.5"), "slurm/jobs": QUEUE}, unix=unix
    )
    source = SlurmRest("c1", SlurmRestOptions(url=server.url), lambda: 1795180000)
    batches = list(source.read(source.watermark_at(1795179000), {}))
    assert sum(len(batch.jobs) for batch in batches) > 20
    assert batches[-1].watermark == "1795179700"  # a time that slurmctld stated
    requests = [(path, query) for path, query, _ in server.requests if path.endswith("jobs")]
    assert [path for path, _ in requests] == [
        f"/{daemon}/v0.0.42/jobs" for daemon in ("slurm", "slurmdb", "slurmdb", "slurmdb")
    ]
    assert requests[1][1]["start_time"] == ["uts1795178400"]
    assert {"CANCELLED", "REQUEUED"} <= set(requests[1][1]["state"])
    assert "RUNNING" not in requests[1][1]["state"]
    assert requests[3][1]["step"] == ["902", "901"]  # a waiting job, and a running one


@pytest.mark.parametrize(
    ("version", "sent"),
    [("v0.0.38", ["7,8"]), ("v0.0.39", ["7,8"]), ("v0.0.40", ["7", "8"]), ("v0.0.45", ["7", "8"])],
)
def test_lists_are_sent_as_the_version_reads_them(start_slurmrestd, version, sent):
    """Old versions keep the last of repeated parameters; 26.05 refuses a comma."""
    server = start_slurmrestd({"slurmdb/jobs": load_recording("24.11.5")}, version=version)
    source = SlurmRest("c1", SlurmRestOptions(url=server.url))
    assert list(source.query_by_id(["7", "8"]))
    assert server.requests[-1][1]["step"] == sent


REFUSED = {  # 26.05.3; the body holds all jobs, before the error
    "jobs": [{"job_id": 1, "name": "x" * 5000}],
    "errors": [
        {"description": 'Unknown flag "COMPLETED,FAILED"', "error_number": 9207,
         "error": "Data parser unable to parse invalid flag", "source": "#/state[0][0]/"}
    ],
}  # fmt: skip


def test_refused_list_names_parameters_and_answer(start_slurmrestd):
    server = start_slurmrestd({"slurmdb/jobs": (500, REFUSED)})
    source = SlurmRest("c1", SlurmRestOptions(url=server.url))
    with pytest.raises(RestError) as caught:
        list(source.query_ended(1, 2, steps=True))
    assert str(caught.value) == (
        f"{server.url}/slurmdb/v0.0.42/jobs with start_time, end_time, state: HTTP 500: Slurm "
        'returned an error: Data parser unable to parse invalid flag: Unknown flag "COMPLETED,'
        'FAILED": #/state[0][0]/'
    )


def test_jobs_hidden_by_private_data_are_reported(start_slurmrestd):
    """With PrivateData=jobs slurmrestd answers "Zero jobs to dump", without an error."""
    own = {"job_id": 1, "job_state": ["FAILED"], "submit_time": 1795179000}
    hidden = EMPTY | {"jobs": [own], "warnings": [{"description": "Zero jobs to dump"}]}
    counts = {"server_thread_count": 3, "jobs_running": 3, "jobs_pending": 4}
    server = start_slurmrestd({"jobs": hidden, "diag": {"statistics": counts}})
    source = SlurmRest("c1", SlurmRestOptions(url=server.url))
    (advice,) = source.check()
    assert advice.startswith("slurmctld has 7 jobs but lists none: PrivateData hides the jobs")
    assert list(source.query_queue()) == []  # the count may be older than an empty answer
    with pytest.raises(SchedulerError, match="7 jobs but lists none: PrivateData"):
        source.query_queue()
    server.answers["diag"] = 500  # what is not known to be hidden is an empty queue
    assert list(source.query_queue()) == []
    server.answers["diag"] = {"statistics": counts}
    counts |= {"jobs_running": 0, "jobs_pending": 0}
    assert list(source.query_queue()) == [] == list(source.check())
    own |= {"job_state": ["RUNNING"]}
    counts |= {"jobs_running": 40}
    (advice,) = source.check()
    assert advice.startswith("slurmctld has 40 jobs but lists 1: PrivateData hides the jobs")
    counts |= {"jobs_running": 2}
    assert source.check() == ()


QUEUE = {
    "jobs": [
        {
            "job_id": 901, "job_state": ["RUNNING"], "user_name": "alice", "user_id": 1001,
            "submit_time": {"set": True, "infinite": False, "number": 1795179600},
            "start_time": {"set": True, "infinite": False, "number": 1795179700},
            "end_time": {"set": True, "infinite": False, "number": 1795183300},
            "time_limit": {"set": True, "infinite": False, "number": 60},
            "array_job_id": {"set": True, "infinite": False, "number": 0}, "nodes": "node[01-02]",
            "tres_req_str": "cpu=4,mem=8G,node=2,billing=4", "name": "train",
            "tres_alloc_str": "cpu=4,mem=8G,node=2,billing=4,gres/gpu=2", "state_reason": "None",
        },
        {
            "job_id": 902, "job_state": "PENDING", "state_reason": "JobHeldUser",
            "submit_time": 1795179500, "array_job_id": 902, "array_task_id": 0,
            "array_task_string": "1-5", "tres_req_str": "cpu=1,mem=100M,node=1", "nodes": "",
            "start_time": 1795189500, "time_limit": {"set": False, "infinite": True, "number": 0},
        },
        {"job_id": 903, "job_state": ["COMPLETED"], "submit_time": 1795179000},
        {"job_id": 904, "job_state": ["COMPLETED", "COMPLETING"], "submit_time": 1795179100,
         "start_time": 1795179200, "end_time": 1795179300},
    ]
}  # fmt: skip


def test_queued_jobs_from_slurmctld():
    found = [parsed.job for parsed in queued_jobs("slurm_rest", "c1", parse_json_queue(QUEUE))]
    running, held, completing = found
    assert (running.jobid, running.state, running.start_time) == (
        "901", JobState.RUNNING, 1795179700,
    )  # fmt: skip
    assert (running.end_time, running.time_limit_seconds, running.uid) == (None, 3600, 1001)
    assert (running.allocated_cpus, running.allocated_gpus, running.requested_cpus) == (4, 2, None)
    assert [node.node for node in running.nodes] == ["node01", "node02"]
    assert (held.state, held.reason, held.start_time) == (JobState.PENDING, "JobHeldUser", None)
    assert (held.array_jobid, held.array_index, held.time_limit_seconds) == ("902", None, None)
    assert (held.requested_cpus, held.allocated_cpus) == (1, None)
    assert (running.expected_start_time, held.expected_start_time) == (None, 1795189500)
    assert completing.end_time == 1795179300  # so the reader leaves the job to accounting


def test_gpus_that_slurm_does_not_track_are_taken_from_the_queue():
    """Without AccountingStorageTRES=gres/gpu no TRES has them, and accounting never will."""
    tres = {"tres_alloc_str": "cpu=4,mem=8G,node=2", "tres_req_str": "cpu=4,mem=8G,node=2"}
    running = QUEUE["jobs"][0] | tres | {"gres_detail": ["gpu:h100:2(IDX:0-1)", "gpu:h100:1"]}
    waiting = running | {"job_state": ["PENDING"], "gres_detail": [], "tres_per_job": "gres/gpu:4"}
    odd = running | {"tres_alloc_str": "cpu"}
    document = {"jobs": [running, waiting, odd]}
    found = list(queued_jobs("slurm_rest", "c1", parse_json_queue(document)))
    gpus = [(each.job.allocated_gpus, each.job.requested_gpus) for each in found]
    assert gpus == [(3, None), (None, 4), (None, None)]
    assert [len(each.quarantined) for each in found] == [0, 0, 1]


def test_suspended_and_resumed_job_durations():
    life = {"start_time": 1795179700, "pre_sus_time": 40, "suspend_time": 1795179800}
    suspended, resumed, never = (
        QUEUE["jobs"][0] | {"job_state": [state], **times}
        for state, times in (
            ("SUSPENDED", life), ("RUNNING", life),
            ("RUNNING", {"pre_sus_time": 0, "suspend_time": 0}),
        )
    )  # fmt: skip
    document = {"jobs": [suspended, resumed, never]}
    found = [parsed.job for parsed in queued_jobs("slurm_rest", "c1", parse_json_queue(document))]
    times = [(job.elapsed_seconds, job.suspended_seconds) for job in found]
    assert times == [(40, None), (None, 60), (None, None)]


def test_newest_supported_api_version_is_used(start_slurmrestd):
    server = start_slurmrestd({}, version="v0.0.38")
    rest = Slurmrestd(RestOptions(url=server.url))
    assert rest.version() == "v0.0.38"
    assert Slurmrestd(RestOptions(url=server.url, version="v0.0.41")).version() == "v0.0.41"
    with pytest.raises(RestError, match="none of the API versions"):
        Slurmrestd(RestOptions(url=start_slurmrestd({}, version="v9").url)).version()


def test_token_is_read_for_each_request(start_slurmrestd, tmp_path):
    server = start_slurmrestd({"diag": EMPTY})
    token = tmp_path / "token"
    token.touch(0o600)
    rest = Slurmrestd(
        RestOptions(url=server.url, version="v0.0.42", user="monitor", token_file=str(token))
    )
    for text in ("SLURM_JWT=abc.def\n", "ghi"):
        token.write_text(text)
        rest.get("slurm", "diag")
    sent = [headers for _, _, headers in server.requests]
    assert [each["X-SLURM-USER-TOKEN"] for each in sent] == ["abc.def", "ghi"]
    assert {each["X-SLURM-USER-NAME"] for each in sent} == {"monitor"}
    token.write_text("a\r\nX-Evil: 1")
    with pytest.raises(RestError, match="expected one line"):
        rest.get("slurm", "diag")


def test_rest_error_messages(start_slurmrestd, tmp_path):
    server = start_slurmrestd(
        {"jobs": 401, "nodes": {"errors": [{"error": "Zero Bytes", "source": "x"}]}}
    )
    rest = Slurmrestd(RestOptions(url=server.url, version="v0.0.42"))
    with pytest.raises(RestError, match="HTTP 401") as caught:
        rest.get("slurm", "jobs")
    assert caught.value.status == 401
    gone = Slurmrestd(RestOptions(url=f"unix:{tmp_path}/none", version="v0.0.42"))
    with pytest.raises(RestError, match="No such file"):
        gone.get("slurm", "jobs")
    with pytest.raises(SlurmJsonError, match="Zero Bytes"):
        list(parse_jobs("slurm_rest", "c1", rest.get("slurm", "nodes")))
    with pytest.raises(SlurmJsonError, match="expected a list 'jobs'"):
        list(parse_jobs("slurm_rest", "c1", EMPTY))


@pytest.mark.parametrize("url", ["ftp://x", "localhost:6820", "unix:relative", "http://u:p@h", 5])
def test_invalid_url_is_rejected(url):
    with pytest.raises(SettingsError, match="expected http://host:port"):
        build_section(RestOptions, "rest", {"rest.url": url})


def test_nothing_found_is_empty_or_an_error_while_jobs_are_unfinished(start_slurmrestd):
    nothing = {"errors": [{"error_number": 9003, "error": "Nothing found"}], "jobs": []}
    server = start_slurmrestd({"jobs": nothing})
    source = SlurmRest("c1", SlurmRestOptions(url=server.url), lambda: 1795180000)
    assert {batch.jobs for batch in source.read("1795179000", {})} == {()}
    source = SlurmRest("c1", SlurmRestOptions(url=server.url), lambda: 1795180000)
    with pytest.raises(SourceError):
        list(source.read("1795179000", {"5": UnfinishedJob(1795170000, 1, None)}))


USERS = {
    "users": [
        {"name": "alice", "administrator_level": ["None"], "default": {"account": "physics"},
         "coordinators": []},
        {"name": "carol", "administrator_level": "Operator", "default": {"account": "ml"},
         "coordinators": [{"name": "science", "direct": True}]},
    ]
}  # fmt: skip
ASSOCIATIONS = {
    "associations": [
        {"cluster": "c1", "account": account, "user": user, "parent_account": parent}
        for account, user, parent in (
            ("root", "", ""), ("science", "", "root"), ("physics", "", "science"),
            ("ml", "", "root"),
            ("physics", "alice", ""), ("ml", "carol", ""),
        )
    ] + [{"cluster": "other", "account": "physics", "user": "eve", "parent_account": ""}]
}  # fmt: skip


def assert_expected_people(people):
    assert people.administrators == (Administrator("carol", "operator"),)
    assert set(people.associations) == {
        Association("c1", "physics", "alice", Role.MEMBER, default=True),
        Association("c1", "ml", "carol", Role.MEMBER, default=True),
        Association("c1", "science", "carol", Role.COORDINATOR),
        Association("c1", "physics", "carol", Role.COORDINATOR),
    }
    assert {(each.account, each.parent) for each in people.accounts} == {
        ("root", ""), ("science", "root"), ("physics", "science"), ("ml", "root"),
    }  # fmt: skip


def test_people_from_rest(start_slurmrestd):
    server = start_slurmrestd({"users": USERS, "associations": ASSOCIATIONS})
    assert_expected_people(Sacctmgr("c1", SacctmgrOptions(by="rest", url=server.url)).read())
    requests = {path: query for path, query, _ in server.requests}
    assert requests["/slurmdb/v0.0.42/users"] == {"with_assocs": ["true"], "with_coords": ["true"]}


NO_LIMITS = "|" * 8


def read_people_from_command(tmp_path, users, associations):
    (tmp_path / "users").write_text(users)
    (tmp_path / "associations").write_text(associations)
    script = tmp_path / "sacctmgr"
    script.write_text(f"""#!/bin/sh
case "$*" in *users*) cat {tmp_path}/users;; *) cat {tmp_path}/associations;; esac
""")
    script.chmod(0o755)
    return Sacctmgr("c1", SacctmgrOptions(sacctmgr=str(script))).read()


def test_people_from_command(tmp_path):
    people = read_people_from_command(
        tmp_path,
        "alice|physics|None|\ncarol|ml|Operator|science\nsacctmgr: error: odd line\n",
        f"c1|root||{NO_LIMITS}\nc1|science||root{NO_LIMITS}\n"
        "c1|physics||science|cpu=512,gres/gpu=8|10|-1|||||2-00:00:00\n"
        f"c1|ml||root{NO_LIMITS}\n"
        f"c1|physics|alice|||||||4||1-00:00:00\nc1|ml|carol|{NO_LIMITS}\n",
    )
    assert_expected_people(people)
    limits = {each.account: each.limits for each in people.accounts if each.limits}
    assert limits == {"physics": "GrpTRES=cpu=512,gres/gpu=8 GrpJobs=10 MaxWall=2-00:00:00"}
    assert [bad.raw for bad in people.quarantined] == ["sacctmgr: error: odd line"]


def test_empty_user_list_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="no users with an account on cluster 'c1'"):
        read_people_from_command(tmp_path, "", f"c1|root||{NO_LIMITS}\n")
