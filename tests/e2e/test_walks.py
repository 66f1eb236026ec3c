"""What people do with a server of their group, line by line: over TLS, with and without the right.

ada is an admin, vera a viewer, and nemo has a certificate that names no role.
"""

import re
import shlex
import sys
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
ada  0  delete train                                                  | 1 deleted
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


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("walks")
    program = PROGRAM.format(root=str(ROOT), data=str(folder / "data"))
    (folder / "program.py").write_text(program)
    with remote_server(folder, "127.0.0.1", port) as server:
        until(lambda: run_cli(server, "jobs").returncode == 0, "answers", 60)
        yield server


def goes_as_it_should(remote, who, status, command, expected):
    done = run_cli(remote, *shlex.split(command), who="" if who == "none" else who)
    print(who, command, done)
    said = done.stdout + done.stderr
    return done.returncode == int(status) and re.search(expected, said, re.MULTILINE)


@pytest.mark.parametrize("walk", [RUNS, MEASUREMENTS, TRACKED_WORK])
def test_walk(remote, walk):
    places = {"python": sys.executable, "program": remote.folder / "program.py"}
    for line in walk.format(**places).strip().splitlines():
        step, _, expected = line.partition(" |")
        goes = partial(goes_as_it_should, remote, *step.split(maxsplit=2), expected.strip())
        if step.split()[2] in READING:  # which may be asked again, until lists have the change
            until(goes, line, 20, 0.3)
        else:
            assert goes(), line
