"""Every command, configuration and query that the documentation shows is tried.

A command of ours is read by the program's own command line; a configuration by the program, or by
Prometheus' promtool; a query by a PromQL parser. What is not ours (apt, systemctl, curl ...) is
read by a shell and must be in the list of such programs, so that a mistyped one of ours is found.
"""

import configparser
import importlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import jsonschema
import promql_parser
import pytest
import yaml

from batchjob_cli.main import COMMANDS
from batchjob_cli.manuals import parser_of
from batchjob_cli.run.defaults import load_configuration as run_configuration
from batchjob_exporter.options import parse_settings as exporter_settings
from batchjob_exporter.web.config import read as web_config
from batchjob_stats_db.poller.options import settings as poller_settings
from batchjob_stats_db.tables_page import views
from batchjob_stats_server.options import settings as server_settings
from batchjob_stats_server.report.facts import UNITS
from batchjob_stats_server.report.rules import load_rules
from collectors.energy.idle import read_idle_file
from tests.documented_blocks import PAGE, RUNS, How, page

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PROGRAMS = {
    "batchjob_exporter": "batchjob_exporter.main",
    "batchjob_stats_db": "batchjob_stats_db.main",
    "batchjob_stats_server": "batchjob_stats_server.main",
}
OTHERS = {
    "ansible-playbook", "apt", "cd", "cosign", "cp", "curl", "dnf", "done", "echo", "export", "fi",
    "for", "gpg",
    "grafana", "groupadd", "gzip", "helm", "htpasswd", "if", "install", "jq", "kubectl",
    "lint-imports", "loginctl", "minisign", "mkdir", "modprobe", "mypy", "openssl", "pip",
    "podman", "promtool", "pytest", "python", "python3", "python3.11", "qmgr", "ruff", "scontrol",
    "sed", "sha256sum", "sphinx-build", "systemctl", "systemd-run", "udevadm", "usermod", "vector",
    "victoria-metrics", "vmagent", "zcat",
}  # fmt: skip
WRAPPERS = {"runuser": 4, "sudo": 1}  # words until the command that they run


class Block(NamedTuple):
    """A fenced block: where it stands, its language, its text."""

    page: str
    line: int
    language: str
    text: str


def blocks(page):
    """Fenced blocks, and indented ones as text without a language."""
    name = str(page.relative_to(REPOSITORY))
    inside, begun, indent, language = None, 0, "", ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence := re.match(r"( *)```(\S*)\s*$", line):
            if inside is None:
                inside, begun, indent, language = [], number, fence[1], fence[2]
            else:
                yield Block(name, begun, language, "\n".join(inside) + "\n")
                inside = None
        elif inside is not None:
            inside.append(line.removeprefix(indent))
        elif line.startswith("    ") and not line.strip().startswith(("-", "|")):
            yield Block(name, number, "", line[4:] + "\n")


PAGES = sorted([REPOSITORY / "README.md", *DOCS.rglob("*.md")])
BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(*languages):
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=lambda each: f"{each.page}:{each.line}")


def commands(text):
    """The words of each command line; a pipe or `&&` ends one."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line.removeprefix("$ "), comments=True)
        except ValueError:
            continue  # part of a longer text
        command = []
        for word in [*words, "|"]:
            if word in ("|", "&&", "||", ";"):
                yield command[: command.index(">")] if ">" in command else command
                command = []
            else:
                command.append(word)


def ours(command):
    """Name and arguments of a command of ours; None of another."""
    while command and command[0] in WRAPPERS:
        command = command[WRAPPERS[command[0]] :]
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    if not command:
        return None
    name = command[0].rpartition("/")[2].removesuffix(".pyz")
    return (name, command[1:]) if name in PROGRAMS or name == "batchjob" else None


@of("sh", "console", "")
def test_our_commands_are_accepted(block):
    for command in commands(block.text):
        if found := ours(command):
            accepted(*found)


def accepted(name, arguments):
    if any(argument.startswith(("[", "...", "…")) for argument in arguments):
        return  # not a command, but its synopsis
    if name == "batchjob":
        known = {command.name: command for command in COMMANDS}
        if not arguments or arguments[0].startswith("-"):
            return
        assert arguments[0] in known, arguments
        program, arguments = known[arguments[0]].load(), arguments[1:]
    else:
        program = importlib.import_module(PROGRAMS[name]).main
    if any(argument in ("COMMAND", "JOB") for argument in arguments[:1]):
        return
    parser_of(program).parse_args(arguments)


@of("sh")
def test_a_shell_reads_it_and_knows_the_programs(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for command in commands(block.text):
        if command and not ours(command) and not command[0].startswith("-"):
            name = command[0].rpartition("/")[2]
            assert name in OTHERS | WRAPPERS.keys() or "=" in name, command


@of("yaml")
def test_configurations_are_accepted(block, tmp_path):
    path = tmp_path / "configuration.yml"
    path.write_text(block.text)
    keys = {key for each in yaml.safe_load_all(block.text) for key in each}
    for known, read in READERS:
        if known(block.page, keys):
            read(path)
            return
    raise AssertionError(f"{block.page}:{block.line}: nobody reads {sorted(keys)}")


def _prometheus(path):
    if shutil.which("promtool") is None:
        pytest.skip("not installed: promtool")
    command = ["promtool", "check", "config", "--syntax-only", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def _kubernetes(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert document["metadata"]["name"]
        assert document["spec"]


def _chart(path):
    schema = json.loads((REPOSITORY / "deploy/kubernetes/values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def _of_exporter(page, keys):
    return all(key.startswith("collector.") for key in keys) or page == "docs/options.md"


# Who reads a configuration: the first whose keys, or page, it has.
READERS = (
    (_of_exporter, lambda path: exporter_settings([f"--config.file={path}"])),
    (lambda _, keys: keys & {"scrape_configs", "rule_files"}, _prometheus),
    (lambda _, keys: {"apiVersion", "kind"} <= keys, _kubernetes),
    (lambda _, keys: "clusterName" in keys, _chart),
    (lambda _, keys: "tls_server_config" in keys, lambda path: web_config(str(path))),
    (lambda _, keys: "rules" in keys, lambda path: load_rules(UNITS, str(path))),
    (lambda page, _: page == "docs/energy.md", lambda path: read_idle_file(str(path), ())),
    (lambda page, _: page == "docs/run.md", lambda path: run_configuration(str(path))),
    (
        lambda page, keys: keys & {"backup", "clusters", "poll"} or keys == {"tsdb"},
        lambda path: poller_settings({}, str(path)),
    ),
    (
        lambda _, keys: keys & {"db", "auth", "web", "emissions", "pages", "grafana", "samples"},
        lambda path: server_settings({}, str(path)),
    ),
)


@of("promql")
def test_queries_are_promql(block):
    for query in re.split(r"\n(?=\S)", block.text.strip()):
        if not query.startswith("#"):
            promql_parser.parse(query)


@of("json")
def test_json_is_json(block):
    assert (
        [json.loads(line) for line in block.text.splitlines()]
        if "}\n{" in block.text
        else (json.loads(block.text))
    )


@of("ini")
def test_ini_is_ini(block):
    configparser.ConfigParser(strict=False, interpolation=None).read_string(
        block.text if block.text.startswith(("[", "#")) else f"[all]\n{block.text}"
    )


@of("sql")
def test_sql_is_what_a_test_types(block):
    """tests/batchjob_stats_db/test_tables_page.py, on both databases."""
    assert block.text.strip() == "\n\n".join(views())


def test_every_language_is_known():
    languages = {block.language for block in BLOCKS}
    assert languages <= {
        "", "console", "sh", "yaml", "promql", "json", "ini", "python", "nginx", "apache", "caddy",
            "sql",
            "{toctree}", "{include}",
    }  # fmt: skip


SHELL = [block for block in BLOCKS if block.language in ("sh", "console")]


@pytest.mark.parametrize("name", sorted({block.page for block in SHELL} | set(RUNS)))
def test_every_shell_block_says_who_runs_it(name):
    begins = list(RUNS.get(name, {}))
    texts = [block.text for block in SHELL if block.page == name]
    assert len(begins) == len(texts)
    for begin, text in zip(begins, texts, strict=True):
        assert text.startswith(begin), f"tests/documented_blocks.py: {name}"


def test_tests_that_run_blocks_are_there():
    for name, runs in RUNS.items():
        for run in runs.values():
            if run.how is not How.READ:
                assert (REPOSITORY / run.by).exists(), run.by
            if run.how is How.TYPED and run.by != "tests/test_shell_blocks.py":
                assert Path(name).name in (REPOSITORY / run.by).read_text(), run.by


def test_the_page_of_blocks_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.documented_blocks"
