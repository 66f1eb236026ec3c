"""What people do with a server of their group, line by line: over TLS, with and without the right.

ada is an admin, vera a viewer, and nemo has a certificate that names no role.
"""

import json
import os
import re
import shlex
import sys
import time
from functools import partial

import pytest

from tests.helpers.processes import free_ports
from tests.helpers.waiting import until
from tests.security.remote_up import ROOT, remote_server, run_cli

pytestmark = pytest.mark.e2e

READING = ("jobs", "job", "logs", "metrics", "stats")

RUNS = """
ada  0  run --detach --name=train -- sh -c 'echo epoch 1; sleep 600'  | ^\\w
ada  2  run --cpus=4000 -- true                                       | 4000
ada  2  run --memory=100T -- true                                     | 100
vera 0  jobs                                                          | train .*(RUNNING|running)
vera 0  job train                                                     | sleep 600
vera 0  logs train                                                    | ^epoch 1$
vera 4  run -- true                                                   | only an admin
vera 4  stop train                                                    | only an admin
vera 4  delete train                                                  | only an admin
nemo 4  jobs                                                          | certificate
nemo 4  logs train                                                    | certificate
none 4  jobs                                                          | certificate
ada  0  run --detach --name=later --at=+1h -- true                    | ^\\w
vera 0  jobs --state=PENDING                                          | later
vera 4  cancel later                                                  | only an admin
ada  0  cancel later                                                  | cancelled
ada  0  stop --grace=1s train                                         | stopped
vera 0  jobs --state=STOPPED                                          | train
ada  0  delete train                                                  | deleted 1 run
vera 3  job train                                                     | does not exist
"""

MEASUREMENTS = """
ada  124 run --name=busy -- timeout 3 sh -c 'while :; do :; done; exit 0'  | CPU time
vera 0  metrics busy --type=cpu                                       | (?s)TIME.*CPU
vera 0  metrics busy --json                                           | "cpu_user_seconds"
nemo 4  metrics busy                                                  | certificate
"""

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from batchjob import track

def mesh(number):
    if number == 2:
        raise ValueError("no mesh")

for number in 1, 2:
    with track(f"mesh-{{number}}", tool="mesher", data={data!r}):
        mesh(number)
"""

TRACKED_WORK = """
ada  1  run --name=tracked -- {python} {program}                      | no mesh
vera 0  jobs --tool=mesher                                            | mesh-1
vera 0  jobs --state=FAILED                                           | mesh-2
vera 0  job mesh-2                                                    | no mesh
vera 0  stats --by=tool                                               | mesher
nemo 4  stats                                                         | certificate
"""

WORKER = """
import sys
sys.path.insert(0, {root!r})
from celery import Celery
from celery.contrib.testing.worker import start_worker
from batchjob.celery import follow

app = Celery("site", broker="memory://", backend="cache+memory://")
follow(app, data={data!r}, tool=lambda task: task.name.split(".")[0])

@app.task(name="cutter.cut")
def cut(parts):
    return parts

@app.task(name="cutter.glue")
def glue():
    raise ValueError("no glue")

with start_worker(app, pool="solo", perform_ping_check=False):
    cut.delay(3).get(timeout=60)
    glue.delay().get(timeout=60)
"""

CELERY_TASKS = """
ada  1  run --name=worker -- {python} {worker}                        | no glue
vera 0  jobs --tool=cutter                                            | cutter.cut
vera 0  jobs --tool=cutter --state=FAILED                             | cutter.glue
vera 0  job cutter.glue                                               | no glue
vera 0  stats --by=tool                                               | cutter
nemo 4  jobs --tool=cutter                                            | certificate
none 4  job cutter.glue                                               | certificate
"""


def lsf_jobs():
    """What LSF answers: a job that runs, and one that ended, of somebody without a certificate."""

    def ago(hours):
        return time.strftime("%b %e %H:%M:%S %Y", time.gmtime(time.time() - hours * 3600))

    job = {
        "JOBINDEX": "0", "USER": "erin", "QUEUE": "gpu", "PROJ_NAME": "wings",
        "ALLOC_SLOT": "4*n1", "SUBMIT_TIME": ago(4), "START_TIME": ago(3),
        "CPU_USED": "7200 second(s)", "MAX_MEM": "2 Gbytes", "RUNTIMELIMIT": "1440.0",
    }  # fmt: skip
    running = {"JOBID": "71", "STAT": "RUN", "JOB_NAME": "flow", "FINISH_TIME": "-"}
    failed = {"JOBID": "70", "STAT": "EXIT", "EXIT_CODE": "3", "JOB_NAME": "grid",
              "FINISH_TIME": ago(1)}  # fmt: skip
    return [job | running, job | failed]


SCHEDULER = """
vera 0  jobs --cluster=alpha                                          | flow .*(RUNNING|running)
vera 0  jobs --cluster=alpha --user=erin --state=FAILED               | grid
vera 0  job 70 --cluster=alpha                                        | wings
ada  0  job 70 --cluster=alpha                                        | 4 CPUs
vera 0  stats --by=user --cluster=alpha                               | erin
ada  3  stop 71                                                       | does not exist
vera 4  stop 71                                                       | only an admin
nemo 4  jobs --cluster=alpha                                          | certificate
none 4  job 70 --cluster=alpha                                        | certificate
"""


def scheduler_commands(folder):
    """Commands of an LSF whose cluster is alpha; no other scheduler answers."""
    rows = lsf_jobs()
    answer = json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows})
    said = {"lsid": "My cluster name is alpha", "bjobs": answer}
    folder.mkdir()
    for name in ("lsid", "bjobs", "scontrol", "qstat"):
        (folder / f"{name}.txt").write_text(said.get(name, ""))
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.txt\n")
        (folder / name).chmod(0o755)
    return ("env", f"PATH={folder}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("walks")
    for name, program in (("program", PROGRAM), ("worker", WORKER)):
        text = program.format(root=str(ROOT), data=str(folder / "data"))
        (folder / f"{name}.py").write_text(text)
    prefix = scheduler_commands(folder / "commands")
    with remote_server(folder, "127.0.0.1", port, prefix) as server:
        until(lambda: run_cli(server, "jobs").returncode == 0, "answers", 60)
        yield server


def goes_as_it_should(remote, who, status, command, expected):
    done = run_cli(remote, *shlex.split(command), who="" if who == "none" else who)
    print(who, command, done)
    said = done.stdout + done.stderr
    return done.returncode == int(status) and re.search(expected, said, re.MULTILINE)


@pytest.mark.parametrize("walk", [RUNS, MEASUREMENTS, TRACKED_WORK, CELERY_TASKS, SCHEDULER])
def test_walk(remote, walk):
    programs = {name: remote.folder / f"{name}.py" for name in ("program", "worker")}
    places = {"python": sys.executable, **programs}
    for line in walk.format(**places).strip().splitlines():
        step, _, expected = line.partition(" |")
        goes = partial(goes_as_it_should, remote, *step.split(maxsplit=2), expected.strip())
        if step.split()[2] in READING:  # which may be asked again, until lists have the change
            until(goes, line, 20, 0.3)
        else:
            assert goes(), line
