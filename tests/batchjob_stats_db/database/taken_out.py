"""Runs the tests of lies with one rule of the gate taken out: `python taken_out.py RULE`.

In the modules that apply the rules, each condition whose consequence names the rule becomes false.
"""

import ast
import importlib.machinery
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "batchjob_stats_db"
MODULES = ("database/gate.py", "measure/job_usage.py", "database/job_writer.py")
# Rules that are applied to an error: the error is raised, as if there was no rule.
ERRORS = {
    "unstorable": (PACKAGE / "poller/batch_writer.py", "or not batch.jobs", "or True"),
    "unreadable": (
        PACKAGE.parent / "batchjob/schedulers/json_lines.py",
        "quarantine.append(quarantined_row(_SOURCE, row_problem(error), line))",
        "raise",
    ),
}


def argv(rule: str) -> Sequence[str]:
    """The command that runs the tests without this rule; its status is 1 if a test fails."""
    return [sys.executable, "-m", "tests.batchjob_stats_db.database.taken_out", rule]


class TakeOut(ast.NodeTransformer):
    """Makes conditions false that lead to a rule."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.places = 0

    def _names_rule(self, nodes: Sequence[ast.AST]) -> bool:
        constants = (each for node in nodes for each in ast.walk(node))
        return any(isinstance(each, ast.Constant) and each.value == self.rule for each in constants)

    def _without(self, node: ast.If | ast.IfExp, then: list[ast.AST], other: list[ast.AST]) -> None:
        if self._names_rule(then):
            node.test = ast.Constant(False)
            self.places += 1
        elif not isinstance(other[0] if other else None, ast.If) and self._names_rule(other):
            node.test = ast.Constant(True)
            self.places += 1

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        self._without(node, list(node.body), list(node.orelse))
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        self._without(node, [node.body], [node.orelse])
        return node


def changed_module(path: Path, rule: str) -> ast.Module:
    """The module without the rule; fails if its place is not found."""
    text = path.read_text()
    if rule in ERRORS:
        _, old, new = ERRORS[rule]
        assert old in text, old
        return ast.parse(text.replace(old, new))
    taken = TakeOut(rule)
    tree = ast.fix_missing_locations(taken.visit(ast.parse(text)))
    assert taken.places or path.name != "gate.py" or rule in ("node", "forged"), rule
    return tree


def main(rule: str) -> int:
    paths = [ERRORS[rule][0]] if rule in ERRORS else [PACKAGE / each for each in MODULES]
    compiled = importlib.machinery.SourceFileLoader.source_to_code

    def source_to_code(self, data, path, *, _optimize=-1):  # type: ignore[no-untyped-def]
        if Path(path) in paths:
            return compile(changed_module(Path(path), rule), path, "exec")
        return compiled(self, data, path, _optimize=_optimize)

    importlib.machinery.SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix = folder  # nothing that was compiled with the rule is used
        tests = str(Path(__file__).with_name("test_lies.py"))
        options = ("-q", "-x", "-n0", "-p", "no:cacheprovider")
        return int(pytest.main([tests, *options]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
