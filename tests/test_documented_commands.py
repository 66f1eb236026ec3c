"""Every command, configuration and query in the documentation is valid.

A command of batchjob is parsed by the program's own command line; a configuration by the program,
or by Prometheus' promtool; a query by a PromQL parser. Other commands (apt, systemctl, curl ...)
are parsed by a shell and must be in the list of other programs, so that a mistyped name is found.
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
from batchjob_stats_server.options import settings as server_settings
from batchjob_stats_server.report.rules import load_rules
from tests.documented_blocks import PAGE, RUNS, Coverage, page
from tests.tables_page import views

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PROGRAMS = {
    "batchjob_exporter": "batchjob_exporter.main",
    "batchjob_stats_db": "batchjob_stats_db.main",
    "batchjob_stats_server": "batchjob_stats_server.main",
}
OTHER_PROGRAMS = {
    "ansible-playbook", "apt", "apt-ftparchive", "cd", "cosign", "cp", "curl", "dnf", "done",
    "dpkg-scanpackages", "echo", "export", "fi", "for", "git", "gpg",
    "grafana", "groupadd", "gzip", "helm", "htpasswd", "if", "install", "jq", "kubectl",
    "lctl", "lint-imports", "loginctl", "minisign", "mkdir", "modprobe", "mv", "mypy", "openssl",
    "pgloader", "pip", "podman", "promtool", "pytest", "python", "python3", "python3.11", "qmgr",
    "rclone", "ruff", "scontrol", "sed", "sha256sum", "sphinx-build", "systemctl", "systemd-run",
    "twine", "udevadm", "usermod", "vector", "victoria-metrics", "vmagent", "zcat",
}  # fmt: skip
WRAPPERS = {"runuser": 4, "sudo": 1}  # words until the command that they run


class Block(NamedTuple):
    """A fenced block: its page and line, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def page_blocks(page):
    """Fenced blocks of a page, and its indented lines as blocks without a language."""
    name = str(page.relative_to(REPOSITORY))
    lines, first_line, indent, language = None, 0, "", ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence := re.match(r"( *)```(\S*)\s*$", line):
            if lines is None:
                lines, first_line, indent, language = [], number, fence[1], fence[2]
            else:
                yield Block(name, first_line, language, "\n".join(lines) + "\n")
                lines = None
        elif lines is not None:
            lines.append(line.removeprefix(indent))
        elif line.startswith("    ") and not line.strip().startswith(("-", "|")):
            yield Block(name, number, "", line[4:] + "\n")


PAGES = sorted([REPOSITORY / "README.md", *DOCS.rglob("*.md")])
BLOCKS = [block for page in PAGES for block in page_blocks(page)]


def parametrize_blocks(*languages):
    """Parametrize a test with the blocks in these languages."""
    selected = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", selected, ids=lambda each: f"{each.page}:{each.line}")


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


def own_command(command):
    """Name and arguments of a command of batchjob; None for any other command."""
    while command and command[0] in WRAPPERS:
        command = command[WRAPPERS[command[0]] :]
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    if not command:
        return None
    name = command[0].rpartition("/")[2].removesuffix(".pyz")
    return (name, command[1:]) if name in PROGRAMS or name == "batchjob" else None


@parametrize_blocks("sh", "console", "")
def test_own_commands_are_accepted(block):
    for command in commands(block.text):
        if own := own_command(command):
            check_own_command(*own)


def check_own_command(name, arguments):
    """Parse the arguments with the program's own parser, which exits if they are invalid."""
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


@parametrize_blocks("sh")
def test_shell_syntax_is_valid_and_programs_are_known(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for command in commands(block.text):
        if command and not own_command(command) and not command[0].startswith("-"):
            name = command[0].rpartition("/")[2]
            assert name in OTHER_PROGRAMS | WRAPPERS.keys() or "=" in name, command


@parametrize_blocks("yaml")
def test_configurations_are_accepted(block, tmp_path):
    path = tmp_path / "configuration.yml"
    path.write_text(block.text)
    keys = {key for each in yaml.safe_load_all(block.text) for key in each}
    for recognizes, read in READERS:
        if recognizes(block.page, keys):
            read(path)
            return
    raise AssertionError(f"{block.page}:{block.line}: no reader for {sorted(keys)}")


def _check_with_promtool(path, *what):
    if shutil.which("promtool") is None:
        pytest.skip("not installed: promtool")
    command = ["promtool", "check", *(what or ("config", "--syntax-only")), str(path)]
    subprocess.run(command, check=True, capture_output=True)


def _check_kubernetes_manifests(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert document["metadata"]["name"]
        assert document["spec"]


def _check_helm_values(path):
    schema = json.loads((REPOSITORY / "deploy/kubernetes/values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def _is_exporter_configuration(page, keys):
    return all(key.startswith("collector.") for key in keys) or page == "docs/options.md"


# A configuration is read by the first reader that recognizes its page or its keys.
READERS = (
    (_is_exporter_configuration, lambda path: exporter_settings([f"--config.file={path}"])),
    (lambda _, keys: keys & {"scrape_configs", "rule_files"}, _check_with_promtool),
    (lambda _, keys: keys == {"groups"}, lambda path: _check_with_promtool(path, "rules")),
    (lambda _, keys: {"apiVersion", "kind"} <= keys, _check_kubernetes_manifests),
    (lambda _, keys: "clusterName" in keys, _check_helm_values),
    (lambda _, keys: "tls_server_config" in keys, lambda path: web_config(str(path))),
    (lambda _, keys: "rules" in keys, lambda path: load_rules(str(path))),
    # Open OnDemand's own file; tests/grafana/test_dashboards.py compares it with the dashboard.
    (lambda page, _: page == "docs/tools.md", lambda path: None),
    (
        lambda page, keys: page == "docs/run.md" or keys == {"remote"},
        lambda path: run_configuration(str(path)),
    ),
    (
        lambda page, keys: keys & {"backup", "clusters", "messages", "poll"} or keys == {"tsdb"},
        lambda path: poller_settings({}, str(path)),
    ),
    (
        lambda _, keys: (
            keys & {"db", "auth", "web", "emissions", "pages", "grafana", "samples", "logs"}
        ),
        lambda path: server_settings({}, str(path)),
    ),
)


@parametrize_blocks("promql")
def test_queries_are_valid_promql(block):
    for query in re.split(r"\n(?=\S)", block.text.strip()):
        if not query.startswith("#"):
            promql_parser.parse(query)


@parametrize_blocks("json")
def test_json_is_valid(block):
    assert (
        [json.loads(line) for line in block.text.splitlines()]
        if "}\n{" in block.text
        else (json.loads(block.text))
    )


@parametrize_blocks("ini")
def test_ini_is_valid(block):
    configparser.ConfigParser(strict=False, interpolation=None).read_string(
        block.text if block.text.startswith(("[", "#")) else f"[all]\n{block.text}"
    )


@parametrize_blocks("sql")
def test_sql_is_that_of_generated_views(block):
    """tests/batchjob_stats_db/test_tables_page.py runs them on both databases."""
    assert block.text.strip() == "\n\n".join(views())


def test_every_language_is_known():
    languages = {block.language for block in BLOCKS}
    assert languages <= {
        "", "console", "sh", "yaml", "promql", "json", "ini", "python", "nginx", "apache", "caddy",
            "sql",
            "{toctree}", "{include}",
    }  # fmt: skip


SHELL_BLOCKS = [block for block in BLOCKS if block.language in ("sh", "console")]


@pytest.mark.parametrize("name", sorted({block.page for block in SHELL_BLOCKS} | set(RUNS)))
def test_every_shell_block_is_in_the_table(name):
    begins = list(RUNS.get(name, {}))
    texts = [block.text for block in SHELL_BLOCKS if block.page == name]
    assert len(begins) == len(texts)
    for begin, text in zip(begins, texts, strict=True):
        assert text.startswith(begin), f"tests/documented_blocks.py: {name}"


def test_tests_that_run_blocks_exist():
    for name, runs in RUNS.items():
        for run in runs.values():
            if run.how is not Coverage.READ:
                assert (REPOSITORY / run.by).exists(), run.by
            if run.how is Coverage.TYPED and run.by != "tests/test_shell_blocks.py":
                assert Path(name).name in (REPOSITORY / run.by).read_text(), run.by


def test_page_of_blocks_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.documented_blocks"
