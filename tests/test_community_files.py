"""The files that contributors and people who cite batchjob meet agree with the rest."""

import re
import sys
import tomllib
from pathlib import Path

import yaml

from batchjob import __version__
from tests.helpers.processes import run

REPOSITORY = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((REPOSITORY / ".github/workflows/tests.yml").read_text())


def test_citation_names_the_version_and_the_licence():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert citation["version"] == __version__
    assert citation["license"] == project["license"]


def test_public_workflow_runs_the_readmes_test_command():
    readme = re.findall(r"```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)[-1]
    steps = "\n".join(step.get("run", "") for step in WORKFLOW["jobs"]["tests"]["steps"])
    assert re.split(r"\s*(?:&&|\n)\s*", readme.strip()) == re.split(r"\s*\n+\s*", steps.strip())


def test_public_workflow_tries_every_supported_python():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pythons = WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]


def test_hooks_are_valid():
    config = REPOSITORY / ".pre-commit-config.yaml"
    checked = run([sys.executable, "-m", "pre_commit", "validate-config", config])
    assert checked.returncode == 0, checked.stdout


def test_issue_forms_ask_for_what_is_needed():
    for path in sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("[bf]*.yml")):
        form = yaml.safe_load(path.read_text())
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert form["name"]
        assert form["description"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)
