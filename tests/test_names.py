"""Names of the product are unambiguous, and its docstrings use names that exist."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
    "collectors", "deploy", "grafana",
)  # fmt: skip
# What a table of modules finds in each: `router` of a route, `ACCOUNTING` of a scheduler.
ROW_NAMES = {
    "ACCOUNTING", "CHECKS", "CLUSTER", "DASHBOARD", "DASHBOARDS", "HELD_STATES", "JOB_MANAGERS",
    "PAGES", "SUBMISSION", "log", "router",
}  # fmt: skip
# Elsewhere, metrics are named within the module of their source (`hwmon.POWER`, `rapl.POWER`), and
# a curve has the name of its quantity.
FOLDERS_OF_UNIQUE_CONSTANTS = (
    "batchjob/local_runs", "batchjob/runtime", "batchjob/schedulers", "batchjob_cli",
    "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server", "deploy", "grafana",
)  # fmt: skip
# Names of schedulers, meters, Grafana, libraries and examples.
FOREIGN_WORDS = {
    "ARRAY_INDEX", "DataSource", "GrafanaJsonDatasource", "MetricsAuthUsers", "MinJobAge",
    "NoDevFiles", "NodeHostName", "OpenMetrics", "PSU0_PIN", "PowerEdge", "PowerSupplyMetrics",
    "UnavailableNodes", "hpc_job", "n1", "no_permission", "process_result_value", "sda",
    "skip_steps", "total_", "zcat",
}  # fmt: skip
CAMEL_CASE = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b")
BACKTICKED = re.compile(r"`([A-Za-z_]\w*)(?:\(\))?`")


def modules(*packages: str) -> dict[str, ast.Module]:
    return {
        str(path.relative_to(REPOSITORY)): ast.parse(path.read_text())
        for package in packages
        for path in sorted((REPOSITORY / package).rglob("*.py"))
    }


def test_class_names_are_unique():
    paths = defaultdict(list)
    for path, tree in modules(*PACKAGES).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                paths[node.name].append(path)
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def public_constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                yield target.id


@pytest.mark.parametrize("folder", FOLDERS_OF_UNIQUE_CONSTANTS)
def test_public_constants_are_unique(folder):
    paths = defaultdict(list)
    for path, tree in modules(folder).items():
        for name in {*public_constants(tree)} - ROW_NAMES:
            if len(name) > 1 and "/migrations/" not in path:  # T is a type variable
                paths[name].append(path)
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts that stand alone: of modules, classes and functions, and below constants."""
    for node in ast.walk(tree):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            yield node.value


def words_of_code(path: str, tree: ast.Module) -> Iterator[str]:
    """Every name in a module, and every word of its texts except docstrings."""
    yield from Path(path).with_suffix("").parts
    prose = {*docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if node not in prose:
                yield from re.findall(r"\w+", str(node.value))
        else:
            fields = (value for _, value in ast.iter_fields(node) if isinstance(value, str))
            yield from (word for value in fields for word in value.split("."))


def test_words_of_docstrings_exist():
    trees = modules(*PACKAGES)
    known = {word for path, tree in trees.items() for word in words_of_code(path, tree)}
    unknown = {
        f"{path}:{text.lineno}: {word}"
        for path, tree in trees.items()
        for text in docstrings(tree)
        for word in {*CAMEL_CASE.findall(text.value), *BACKTICKED.findall(text.value)} - known
        if word not in FOREIGN_WORDS
    }
    assert unknown == set()
