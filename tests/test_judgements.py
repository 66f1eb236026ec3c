"""Judgements are written in one module: `batchjob.judgements`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

from batchjob import judgements as judgements_module
from batchjob.schedulers.states import JobState

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "batchjob",
    "batchjob_cli",
    "batchjob_exporter",
    "batchjob_stats_db",
    "batchjob_stats_server",
    "collectors",
    "grafana/generate",
)
HOME = "batchjob/judgements.py"
# The modules in which any fraction is a judgement. Those that read nodes have tolerances of
# instruments; there, only comparisons of ratios are.
JUDGING = ("batchjob_stats_db/", "batchjob_stats_server/", "batchjob_cli/", "grafana/generate/")
JUDGED_STATES = {
    "FAILED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "RUNNING",
}
STATES = {state.value for state in JobState}
INVENTED = (
    "batchjob_cli/up/demo",
    "batchjob_stats_db/database/migrations/",
)  # made up, or of the past
# What looks like a judgement and is none.
EXCEPTIONS = {
    ("batchjob/schedulers/states.py", "(JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)"):
        "the definition of a live state",
    (
        "batchjob/schedulers/slurm/accounting/site_accounting.py",
        "(JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.DEADLINE, "
        "JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.REQUEUED)",
    ): "ends by Slurm, not by the program",
    ("batchjob_stats_db/poller/poller.py", "0.2"): "the part of its time that a poll may take",
    ("batchjob_stats_server/pages/jobs.py", "'10%'"): "an example in a form",
    ("batchjob_stats_server/pages/jobs.py", "'20%'"): "an example in a form",
    ("batchjob_stats_server/pages/jobs.py", "'25%'"): "an example in a form",
    ("batchjob_stats_server/pages/rendering/charts.py", "0.2"): "steps of an axis",
    ("batchjob_stats_server/pages/rendering/run_strip.py", "0.5"): "pixels",
    ("batchjob_stats_server/report/conditions.py", "0.01"): "a per cent",
}  # fmt: skip
LEAST_FRACTION = 0.005  # smaller ones are units (milliseconds) and tolerances of arithmetic


class Judgement(NamedTuple):
    """A literal that only `batchjob.judgements` may have."""

    line: int
    text: str


def judgements(tree: ast.Module, *, judging: bool) -> Iterator[Judgement]:
    """The judgements that a module writes itself."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    constants = module_constants(tree)
    for node in ast.walk(tree):
        if (
            is_set_of_states(node)
            or is_weight(node)
            or (isinstance(node, ast.Compare) and compares_ratio(node, constants))
            or (judging and is_fraction(node) and not is_of_time(node, parents))
            or (judging and is_percentage(node) and not is_format(parents[node]))
        ):
            yield Judgement(node.lineno, ast.unparse(node))


def state_of(node: ast.expr) -> str | None:
    """The state that an expression names: `"FAILED"`, `JobState.FAILED` or its value."""
    if isinstance(node, ast.Attribute) and node.attr == "value":
        node = node.value
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "JobState":
        return node.attr
    if isinstance(node, ast.Constant) and node.value in STATES:
        return str(node.value)
    return None


def is_set_of_states(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether it groups states: in a collection, in a text, or by comparisons joined by `or`."""
    found: list[str | None] = []
    if isinstance(node, ast.BoolOp):
        compared = [each for each in node.values if isinstance(each, ast.Compare)]
        found = [
            state_of(each.comparators[0]) for each in compared if isinstance(each.ops[0], ast.Eq)
        ]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        found = [state_of(each) for each in node.elts]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split(",")
        found = [word if word in STATES else None for word in words]
    return len(found) > 1 and None not in found and bool(JUDGED_STATES & {*found})


def is_fraction(node: ast.AST) -> TypeGuard[ast.Constant]:
    is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
    return is_float and LEAST_FRACTION <= node.value < 1


def module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    assigned = [each for each in tree.body if isinstance(each, ast.Assign)]
    return {ast.unparse(each.targets[0]): each.value for each in assigned}


def compares_ratio(node: ast.Compare, constants: dict[str, ast.expr]) -> bool:
    """Whether a ratio is compared with a fraction, or with a constant that is one."""
    words = ast.unparse(node).lower()
    is_ratio = any(word in words for word in ("ratio", "coverage", "efficiency", "utiliz"))
    sides = (node.left, *node.comparators)
    return is_ratio and any(is_fraction(constants.get(ast.unparse(each), each)) for each in sides)


TIME_WORDS = ("second", "sleep", "wait", "join", "interval", "timeout", "delay", "pause")


def is_of_time(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a fraction is one of a second, by the name that it is assigned or given to."""
    while (parent := parents.get(node)) and not isinstance(parent, ast.FunctionDef | ast.Module):
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.keyword | ast.Call):
            words = ast.unparse(parent).lower()
            return any(word in words for word in TIME_WORDS)
        node = parent
    return False


def is_percentage(node: ast.AST) -> TypeGuard[ast.Constant]:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return bool(re.fullmatch(r"\d[\d.]* ?%", node.value))


def is_format(parent: ast.AST) -> bool:
    """Whether the parent is a format."""
    return isinstance(parent, ast.JoinedStr)


def is_weight(node: ast.AST) -> TypeGuard[ast.BinOp]:
    """Whether GPUs are weighed in CPUs: `32 * gpu_seconds`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    names = ast.unparse(node).lower()
    has_factor = any(isinstance(each, ast.Constant) for each in (node.left, node.right))
    return has_factor and "gpu" in names and "seconds" in names


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name != HOME and not name.startswith(INVENTED):
                yield name, ast.parse(path.read_text())


def test_no_other_module_writes_a_judgement() -> None:
    found = {
        (name, judgement.text): f"{name}:{judgement.line}: {judgement.text}"
        for name, tree in modules()
        for judgement in judgements(tree, judging=name.startswith(JUDGING))
    }
    assert [where for key, where in found.items() if key not in EXCEPTIONS] == []
    assert [key for key in EXCEPTIONS if key not in found] == []  # no exception is stale


@pytest.mark.parametrize(
    "text",
    [
        'FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL")',
        "bad = {JobState.BOOT_FAIL, JobState.DEADLINE}",
        'job.state.in_(["RUNNING", "SUSPENDED"])',
        'failed = state == "FAILED" or state == "TIMEOUT"',
        'parameters = {"state": "FAILED,NODE_FAIL"}',
        "_COMPLETE = 0.95\n\ndef f(x): return x.coverage >= _COMPLETE",
        "idle = gpu_utilization_ratio < 0.01",
        "levels = Levels(0.25, 0.6)",
        "limit: float = Field(0.1)",
        'preset("Wasteful", cpu_efficiency_at_most="25%")',
        'waste = cpu_seconds + 32 * row["gpu_unused_seconds"]',
    ],
)
def test_a_judgement_in_another_module_is_found(text: str) -> None:
    assert list(judgements(ast.parse(text), judging=True))


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(0.25)",
        "_PAUSE_SECONDS = 0.5",
        "_WORDS = {JobState.FAILED: 'failed', JobState.TIMEOUT: 'at its limit'}",
        "factor = 0.001",
        'text = f"{ratio:.0%}"',
    ],
)
def test_times_units_and_tables_of_words_are_no_judgements(text: str) -> None:
    assert not list(judgements(ast.parse(text), judging=True))


def test_pages_quote_thresholds_instead_of_writing_them() -> None:
    written = re.compile(r"(?<![\w\[|])\d+ %(?!})")
    templates = sorted((ROOT / "batchjob_stats_server/pages/templates").glob("*.html"))
    assert templates
    assert {path.name: written.findall(path.read_text()) for path in templates} == {
        path.name: [] for path in templates
    }


def test_alerts_judge_as_pages_do() -> None:
    rules = (ROOT / "prometheus/rules/job_alerts.yml").read_text()
    rules += (ROOT / "prometheus/rules/jobs.yml").read_text()
    rules += (ROOT / "prometheus/rules/service_alerts.yml").read_text()
    limits = judgements_module.thresholds()
    for expected in (
        f"utilization_ratio:max30m < {limits.idle_gpu:g}",
        f"utilization_ratio:max30m) < bool {limits.idle_gpu:g}",
        f"memory_limit_ratio > {limits.near_limit:g}",
        f"cpu_utilization_ratio < {judgements_module.IDLE_CPU_PART:g}",
        f"> 36000) < {limits.enough_coverage:g}",
    ):
        assert expected in rules


SENTENCES = [name for name in vars(judgements_module) if name.endswith("_MEANS")]


@pytest.mark.parametrize("name", SENTENCES)
def test_the_documentation_quotes_each_definition(name: str) -> None:
    sentence: str = getattr(judgements_module, name)
    assert sentence in " ".join((ROOT / "docs/report.md").read_text().split())


def test_the_definition_of_failed_names_its_states() -> None:
    words = set(re.findall(r"[A-Z_]{4,}", judgements_module.FAILED_MEANS))
    assert words == {state.value for state in judgements_module.FAILED_STATES}
