"""The cluster of the recording, who works on it, and the jobs that they submit again and again."""

from typing import NamedTuple

from batchjob.schedulers.states import JobState

NODES = {
    **{f"c{n:02}": {"cpus": 64, "memory_gib": 256, "gpus": 0} for n in range(1, 23)},
    **{f"g{n:02}": {"cpus": 64, "memory_gib": 512, "gpus": 8} for n in range(1, 5)},
}
NODES["c07"] |= {"exporter_up_ratio": 0.86}
NODES["c21"] |= {"state": "idle", "flag": "drain", "reason": "memory errors"}
NODES["c21"] |= {"stray_cores": 24.0}  # busy without an allocation
NODES["c22"] |= {"state": "down", "reason": "not responding"}
USABLE = [node for node, facts in NODES.items() if "reason" not in facts]
BAD_NODE, BAD_FROM_DAY = "c13", 18  # where half of the jobs fail within minutes from that day on
SLOW_NODE, SLOWNESS = "c02", 2.0  # factor of the jobs' time, also from that day on

ACCOUNT_CPU_LIMITS = {"chemistry": 1024}
USER_JOB_LIMITS = {("emmy", "short"): 6}  # running at once, in a QOS


class Recipe(NamedTuple):
    """Jobs that one person submits again and again."""

    name: str
    user: str
    account: str
    jobs_per_day: float
    nodes: int
    cpus: int  # per node, like the next two
    memory_gib: int
    gpus: int
    limit_hours: int
    hours: float  # typical run time
    cpu_busy: float  # 0..1
    memory_used: float
    gpu_busy: tuple[float, ...] = ()  # of each GPU of a node
    gpu_memory_gib: float = 50.0  # of a busy one
    end: JobState | None = None  # instead of COMPLETED, for some of the jobs
    idle_node: bool = False  # the last node is nearly idle
    partition: str = "cpu"
    qos: str = "normal"
    tasks: int = 0  # of an array
    at_once: int = 0  # tasks of the array that run at once
    from_day: int = 0
    steps: tuple[str, ...] = ()
    phases: bool = False  # most of its CPU time is in its middle third


_F, _T, _O = JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY
RECIPES = (
    Recipe("train-resnet", "ada", "vision", 4, 1, 32, 256, 4, 24, 9, 0.5, 0.35,
           (0.92, 0.9, 0.91, 0.93), 62, _T, partition="gpu"),
    Recipe("finetune-llm", "grace", "language", 1.5, 2, 64, 512, 8, 48, 14, 0.4, 0.5,
           (0.95,) * 8, 74, JobState.NODE_FAIL, partition="gpu", steps=("torchrun",)),
    Recipe("notebook", "alan", "language", 3, 1, 16, 128, 4, 8, 6, 0.04, 0.1,
           (0.35, 0.0, 0.0, 0.0), 21, JobState.CANCELLED, partition="gpu"),
    Recipe("jupyter", "alan", "language", 2.5, 1, 8, 64, 2, 12, 11, 0.01, 0.08, (0.0, 0.0), 14,
           _T, partition="gpu"),
    Recipe("gromacs-prod", "rosalind", "chemistry", 4.8, 4, 64, 128, 0, 24, 15, 0.97, 0.3,
           qos="long", steps=("gmx_grompp", "gmx_mdrun")),
    Recipe("cp2k-relax", "linus", "chemistry", 4, 2, 64, 256, 0, 12, 4, 0.85, 0.75, end=_F,
           steps=("cp2k.psmp",)),
    Recipe("assembly", "barbara", "genomics", 3, 1, 32, 200, 0, 24, 6, 0.7, 0.93, end=_O,
           phases=True),
    Recipe("variant-calling", "barbara", "genomics", 6, 1, 16, 240, 0, 24, 1.5, 0.6, 0.08),
    Recipe("wrf-forecast", "jule", "climate", 1.4, 8, 64, 128, 0, 8, 5, 0.9, 0.4, end=_T,
           steps=("real.exe", "wrf.exe")),
    Recipe("ocean-model", "jule", "climate", 0.8, 4, 64, 128, 0, 24, 11, 0.88, 0.5,
           idle_node=True),
    Recipe("parameter-scan", "emmy", "physics", 6, 1, 8, 16, 0, 2, 0.4, 0.99, 0.3, end=_F,
           qos="short"),
    Recipe("postprocess", "emmy", "physics", 3, 1, 32, 64, 0, 4, 0.7, 0.05, 0.2, phases=True),
    Recipe("sensitivity", "emmy", "physics", 0.7, 1, 4, 8, 0, 1, 0.3, 0.97, 0.5, end=_F, tasks=8,
           at_once=4),
    Recipe("docking", "emmy", "physics", 12, 1, 4, 8, 0, 1, 0.33, 0.96, 0.4, end=_F, tasks=8,
           at_once=1, from_day=25),
)  # fmt: skip

CHAIN = (  # submitted together, each of which waits for the one before
    Recipe("etl-extract", "barbara", "genomics", 1, 1, 8, 32, 0, 4, 0.8, 0.5, 0.4, end=_F),
    Recipe("etl-align", "barbara", "genomics", 1, 1, 32, 96, 0, 8, 2.2, 0.9, 0.6),
    Recipe("etl-report", "barbara", "genomics", 1, 1, 2, 8, 0, 1, 0.2, 0.4, 0.3),
)  # fmt: skip

# Submitted again and again after it ran out of memory, at last with twice as much.
OUT_OF_MEMORY = Recipe(
    "rna-align", "barbara", "genomics", 1, 1, 8, 24, 0, 6, 0.5, 0.8, 0.97, end=_O
)
OUT_OF_MEMORY_DAYS, OUT_OF_MEMORY_RUNS = (20.3, 27.2, 30.4), 9

ALL = (*RECIPES, *CHAIN, OUT_OF_MEMORY)
USERS = tuple(dict.fromkeys(recipe.user for recipe in ALL))


def submit_options(recipe: Recipe, memory_gib: int) -> list[str]:
    """The options of sbatch."""
    gpus = [f"--gpus-per-node={recipe.gpus}"] if recipe.gpus else []
    qos = [f"--qos={recipe.qos}"] if recipe.qos != "normal" else []
    array = [f"--array=1-{recipe.tasks}%{recipe.at_once}"] if recipe.tasks else []
    return [
        f"--partition={recipe.partition}", f"--nodes={recipe.nodes}",
        f"--ntasks-per-node={recipe.cpus}", f"--mem={memory_gib}G", *gpus, *qos, *array,
        f"--time={recipe.limit_hours}:00:00",
    ]  # fmt: skip


def script(recipe: Recipe) -> str:
    """The batch script."""
    options = "\n".join(f"#SBATCH {each}" for each in submit_options(recipe, recipe.memory_gib))
    programs = "\n".join(f"srun {each}" for each in recipe.steps) or f"./{recipe.name}"
    argument = " $SLURM_ARRAY_TASK_ID" if recipe.tasks else ""
    return f"#!/bin/bash\n#SBATCH --job-name={recipe.name}\n{options}\n\n{programs}{argument}\n"
