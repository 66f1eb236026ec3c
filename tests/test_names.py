"""Names of the product are unambiguous."""

import ast
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
    "collectors", "deploy", "grafana",
)  # fmt: skip


def test_class_names_are_unique():
    paths = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    paths[node.name].append(str(path.relative_to(REPOSITORY)))
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}
