"""A real sbatch accepts the submit lines and batch scripts that reports suggest."""

import itertools
from collections.abc import Iterator

import pytest

from batchjob.schedulers.slurm.submission import SUBMISSION
from batchjob.schedulers.submission import NextRequest
from tests.e2e import slurm

pytestmark = pytest.mark.e2e

REQUESTS = [
    {"cpus": 1, "memory_mib": 200, "seconds": 600},
    {"memory_mib": 100},
    {"cpus": 1},
    {"seconds": 90_061},
]
LINES = [
    "sbatch SCRIPT --mem=9",
    "sbatch -c 2 --mem=300M -t 1-0 SCRIPT",
    "sbatch --mem-per-cpu 150M -n2 --time=30 SCRIPT",
    "sbatch --exclusive -N 2 --ntasks-per-node=2 SCRIPT",
    "sbatch --parsable --cpus-per-task=2 --job-name x SCRIPT",
]
HEADS = [
    "",
    "#SBATCH --mem-per-cpu=150M\n#SBATCH -n 2",
    "#SBATCH --mem=300M   # enough\n#SBATCH --cpus-per-task 2\n#SBATCH -t 1-0",
    "#SBATCH --ntasks-per-node=2 -N 2",
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    if why_not := slurm.missing(cgroup=1, accounting=False):
        pytest.skip(why_not)
    with slurm.cluster(cgroup=1, nodes=2, accounting=False) as started:
        yield started


def script_of(cluster: slurm.Cluster, text: str) -> str:
    path = cluster.home("alice") / "job.sh"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def request_of(options: str, amounts: dict[str, int]) -> NextRequest:
    return NextRequest(2 if "-N 2" in options else 1, 2, 300, **amounts)


def accepts(cluster: slurm.Cluster, line: str) -> bool:
    command, *rest = line.split()
    try:
        cluster.command(command, "--test-only", *rest, user="alice")
    except AssertionError:
        return False
    return True


def test_sbatch_accepts_corrected_lines(cluster: slurm.Cluster) -> None:
    """Of all that it accepted before."""
    tried = 0
    for template, head in itertools.product(LINES, HEADS):
        line = template.replace("SCRIPT", script_of(cluster, f"#!/bin/sh\n{head}\ntrue\n"))
        if not accepts(cluster, line):
            continue
        for amounts in REQUESTS:
            request = request_of(line + head, amounts)
            again = SUBMISSION.corrected_line(line, head, request)
            assert not again or accepts(cluster, again), again
            tried += bool(again)
    assert tried >= 30


@pytest.mark.parametrize("amounts", REQUESTS, ids=str)
def test_sbatch_accepts_corrected_scripts(cluster: slurm.Cluster, amounts: dict[str, int]) -> None:
    for head in HEADS:
        text = SUBMISSION.corrected_script(f"#!/bin/sh\n{head}\ntrue\n", request_of(head, amounts))
        cluster.command("sbatch", "--test-only", script_of(cluster, text), user="alice")


def test_both_kinds_of_memory_are_what_sbatch_refuses(cluster: slurm.Cluster) -> None:
    script = script_of(cluster, "#!/bin/sh\n#SBATCH --mem-per-cpu=150M\ntrue\n")
    with pytest.raises(AssertionError, match="mutually exclusive"):
        cluster.command("sbatch", "--test-only", "--mem=200M", script, user="alice")
