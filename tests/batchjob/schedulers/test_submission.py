"""Submit lines and batch scripts with another request, for each scheduler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers import registry
from batchjob.schedulers.submission import NextRequest

LESS = {"cpus": 4, "memory_mib": 8192, "gpus": 1, "seconds": 9000}


def request_of(nodes=1, **amounts):
    """A job had 16 CPUs and 64 GiB of each node."""
    return NextRequest(nodes, 16, 65536, **amounts)


def corrected(source, line, other="", nodes=1, **amounts):
    submission = registry.submission_of(source)
    return submission.corrected_line(line, other, request_of(nodes, **amounts or LESS))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "sbatch --mem=64G -t 1-0 -c 16 --gres=gpu:a100:4 run.sh --time=5",
            "sbatch --mem=8192M -t 2:30:00 -c 4 --gres=gpu:a100:1 run.sh --time=5",
        ),
        ("sbatch run.sh -c 16", "sbatch --mem=8192M --time=2:30:00 run.sh -c 16"),
        (
            "sbatch --mem-per-cpu 4G -n16 run.sh",
            "sbatch --time=2:30:00 --mem-per-cpu 2048M -n4 run.sh",
        ),
        (
            "sbatch --exclusive -n4 -c4 --mem-per-gpu=16G -G 4 run.sh",
            "sbatch --time=2:30:00 --exclusive -n4 -c1 --mem-per-gpu=8192M -G 1 run.sh",
        ),
        ("/usr/bin/srun  --mem=9G -c16 ./a", "/usr/bin/srun --time=2:30:00 --mem=8192M -c4 ./a"),
        ("", "sbatch --mem=8192M --time=2:30:00 SCRIPT"),
    ],
)
def test_slurm_line(line, expected):
    assert corrected("sacct", line) == expected


def test_slurm_line_knows_the_options_of_the_script():
    script = "#SBATCH --mem-per-cpu=4G\n#SBATCH --ntasks-per-node=16\n#SBATCH --gpus-per-node=4"
    assert corrected("sacct", "sbatch run.sh", script) == (
        "sbatch --ntasks-per-node=4 --gpus-per-node=1 --mem-per-cpu=2048M --time=2:30:00 run.sh"
    )


def test_fewer_cpus_of_a_slurm_job_keep_its_memory():
    assert corrected("sacct", "sbatch --mem-per-cpu=4G -c 16 a", cpus=4) == (
        "sbatch --mem-per-cpu=16384M -c 4 a"
    )
    assert corrected("sacct", "sbatch -n 32 a", nodes=2, cpus=4) == "sbatch --mem=65536M -n 8 a"
    assert corrected("sacct", "sbatch run.sh", cpus=4) == ""  # unknown whether by tasks


@pytest.mark.parametrize(
    ("line", "other", "expected"),
    [
        (
            "qsub -N a -l select=1:ncpus=16:ngpus=4:mem=64gb -l walltime=24:00:00 run.sh", "",
            "qsub -N a -l select=1:ncpus=4:ngpus=1:mem=8192mb -l walltime=2:30:00 run.sh",
        ),
        (
            "", "select=2:ncpus=8:mem=32gb",
            "qsub -l walltime=2:30:00 -l select=2:ncpus=2:mem=4096mb SCRIPT",
        ),
        (
            "qsub -l nodes=1:ppn=16,walltime=24:00:00,mem=64gb run.sh", "",
            "qsub -l nodes=1:ppn=4,walltime=2:30:00,mem=8192mb run.sh",
        ),
        ("qsub -l ncpus=16 a", "", "qsub -l walltime=2:30:00 -l mem=8192mb -l ncpus=4 a"),
        ("qsub -l select=1:ncpus=4+3:ncpus=2 a", "",
         "qsub -l walltime=2:30:00 -l select=1:ncpus=4+3:ncpus=2 a"),
    ],
)  # fmt: skip
def test_pbs_line(line, other, expected):
    assert corrected("qstat", line, other) == expected


def test_lsf_line():
    assert corrected("lsb_acct", "python train.py -n 3") == (
        'bsub -n 4 -gpu "num=1" -M 8192MB -W 2:30 python train.py -n 3'
    )
    assert corrected("bjobs", "#!/bin/sh\ntrue\n", seconds=61) == "bsub -W 0:02 SCRIPT"


SCRIPTS = {
    "sacct": (
        "#!/bin/bash\n#SBATCH --mem-per-cpu=4G  # much\n#SBATCH -c 16\n\nsrun ./a --mem=3\n"
        "#SBATCH --mem=1G\n",
        "#!/bin/bash\n#SBATCH --mem-per-cpu=2048M  # much\n#SBATCH -c 4\n"
        "#SBATCH --time=2:30:00\n\nsrun ./a --mem=3\n#SBATCH --mem=1G\n",
    ),
    "qstat": (
        "#PBS -l select=1:ncpus=16:mem=64gb\n#PBS -q gpu\n./a\n",
        "#PBS -l select=1:ncpus=4:mem=8192mb\n#PBS -q gpu\n#PBS -l walltime=2:30:00\n./a\n",
    ),
    "lsb_acct": (
        '#!/bin/sh\n#BSUB -n 16\n#BSUB -W 24:00\n#BSUB -gpu "num=4:mode=shared"\n./a\n',
        '#!/bin/sh\n#BSUB -n 4\n#BSUB -W 2:30\n#BSUB -gpu "num=1:mode=shared"\n'
        "#BSUB -M 8192MB\n./a\n",
    ),
}


@pytest.mark.parametrize("source", SCRIPTS)
def test_script_has_the_request_in_its_head(source):
    before, after = SCRIPTS[source]
    submission = registry.submission_of(source)
    assert submission.corrected_script(before, request_of(**LESS)) == after
    assert submission.corrected_script(after, request_of(**LESS)) == after


@given(st.sampled_from(sorted(SCRIPTS)), st.text())
def test_any_script_keeps_its_commands(source, text):
    submission = registry.submission_of(source)
    corrected = submission.corrected_script(text, request_of(seconds=9000))
    commands = [line for line in text.split("\n") if not line.startswith("#")]
    assert [line for line in corrected.split("\n") if not line.startswith("#")] == commands


@given(st.sampled_from(sorted(SCRIPTS)), st.text())
def test_any_line_can_be_corrected(source, line):
    assert corrected(source, line, seconds=9000)
