"""Names that configuration, queries and programs of users rely on, as files under golden/.

Metrics and labels, tables and columns, endpoints and their parameters, options and flags: a change
of one of them is a difference in review. Prose (help texts, descriptions) is in separate files,
`*_prose.*`, so that rewording changes no other file. After an intended change:

    python -m tests.regenerate

The exporter's output on recorded machines is checked by tests/collectors/jobs/test_golden.py, the
generated pages in docs/ by tests/test_docs.py.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from prometheus_client.metrics import MetricWrapperBase

from batchjob.runtime.settings import format_default, options_of
from batchjob.schedulers.registry import SOURCES
from batchjob_cli import main as batchjob
from batchjob_cli.manuals import parser_of
from batchjob_exporter import exporter, self_metrics
from batchjob_exporter import main as exporter_main
from batchjob_exporter import options as exporter_options
from batchjob_stats_db import main as poller_main
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.poller import options as poller_options
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_server import app, services
from batchjob_stats_server import main as server_main
from batchjob_stats_server import options as server_options
from batchjob_stats_server.services import ServerMetrics
from collectors.collector import COLLECTORS

GOLDEN = Path(__file__).parent / "golden" / "contracts"


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file, or update it."""
    golden = GOLDEN / name
    if os.environ.get("BATCHJOB_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def joined_lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> sa.engine.URL:
    """An empty database, migrated."""
    url = parse_url(f"sqlite:///{tmp_path_factory.mktemp('contracts')}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    engine.dispose()
    return url


def test_tables(database):
    engine = writer_engine(database)
    with engine.connect() as db:
        rows = db.execute(
            sa.text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name")
        )
        statements = [row.sql.strip() + ";\n" for row in rows]
    engine.dispose()
    check_golden("database.sql", joined_lines(statements))


# The API


@pytest.fixture
def openapi(database):
    settings = server_options.ServerSettings(DatabaseOptions(f"sqlite:///{database.database}"))
    built_services = services.build(settings)
    yield app.make(built_services).openapi()
    built_services.stop()


def test_api(openapi):
    check_golden("openapi.txt", joined_lines(sorted([*operations(openapi), *schemas(openapi)])))


def test_api_prose(openapi):
    rows = [f"{path}: {' '.join(text.split())}" for path, text in prose_texts(openapi, "")]
    check_golden("openapi_prose.txt", joined_lines(sorted(rows)))


def operations(openapi: dict[str, Any]) -> Iterator[str]:
    """A line for each parameter, answer and other property of an operation."""
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.pop("parameters", ()):
                yield f"{name} ?{parameter['name']} {compact(parameter)}"
            for status, response in operation.pop("responses").items():
                yield f"{name} {status} {compact(response)}"
            yield f"{name} {compact(operation)}"


def schemas(openapi: dict[str, Any]) -> Iterator[str]:
    """A line for each property of an object, and one for its other keys."""
    for name, schema in openapi["components"]["schemas"].items():
        for key, each in schema.pop("properties", {}).items():
            yield f"{name}.{key} {compact(each)}"
        yield f"{name} {compact(schema)}"


def compact(part: Any) -> str:
    return json.dumps(without_prose(part), sort_keys=True)


PROSE = ("description", "summary")
GENERATED = ("title",)  # by pydantic, from the names


def without_prose(part: Any) -> Any:
    if isinstance(part, list):
        return [without_prose(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: without_prose(value)
        for key, value in part.items()
        if not (key in PROSE + GENERATED and isinstance(value, str))
    }


def prose_texts(part: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, list):
        for index, each in enumerate(part):
            name = each.get("name", index) if isinstance(each, dict) else index
            yield from prose_texts(each, f"{path}/{name}")
    elif isinstance(part, dict):
        for key, value in part.items():
            if key in PROSE and isinstance(value, str):
                yield f"{path}/{key}", value
            else:
                yield from prose_texts(value, f"{path}/{key.replace('/', '~')}")


# Metrics


class DescribedMetric(NamedTuple):
    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def described_metrics() -> Iterator[DescribedMetric]:
    self_metric_families = [family.metric for family in self_metrics.self_families_reader(True)()]
    for metrics in (
        *(entry.load().metrics for entry in COLLECTORS),
        exporter.METRICS,
        self_metric_families,
    ):
        for each in metrics:
            yield DescribedMetric(each.name, each.type, each.labels, each.help)
    for families in (PollerMetrics(), ServerMetrics()):
        for family in vars(families).values():
            if isinstance(family, MetricWrapperBase):
                (metric,) = family.describe()
                suffix = "_total" if metric.type == "counter" else ""
                labels = family._labelnames  # prometheus-client has no other way to list them
                yield DescribedMetric(
                    metric.name + suffix, metric.type, labels, metric.documentation
                )


def test_metrics():
    rows = [f"{each.name}{{{','.join(each.labels)}}} {each.type}" for each in described_metrics()]
    assert len(rows) == len(set(rows))
    check_golden("metrics.txt", joined_lines(rows))


def test_metrics_prose():
    check_golden(
        "metrics_prose.txt",
        joined_lines([f"{each.name}: {each.help}" for each in described_metrics()]),
    )


# Options and commands


SECTIONS = {
    "batchjob_exporter": exporter_options.sections(),
    "batchjob_stats_db": poller_options.SECTIONS,
    "batchjob_stats_server": server_options.SECTIONS,
    **{f"source {name}": {"": entry.load().options} for name, entry in SOURCES.items()},
}


def test_options():
    rows = [
        f"{program}: {each.name}{'' if each.flag else ' (file only)'}"
        f"{' (repeated)' if each.repeat else ''} {format_default(each)}"
        for program, sections in SECTIONS.items()
        for each in options_of(sections)
    ]
    check_golden("options.txt", joined_lines(rows))


def command_lines() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command and sub-command, with its parser."""
    for name, main in (
        ("batchjob_exporter", exporter_main.main),
        ("batchjob_stats_db", poller_main.main),
        ("batchjob_stats_server", server_main.main),
        *((f"batchjob {each.name}", each.load()) for each in batchjob.COMMANDS),
    ):
        yield from command_and_subcommands(name, parser_of(main))


def command_and_subcommands(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:  # argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from command_and_subcommands(f"{name} {word}", inner)


def test_flags():
    rows = [
        f"{command}: {' '.join(action.option_strings) or action.dest}"
        f"{' ' + '|'.join(map(str, action.choices)) if action.choices else ''}"
        f"{' (required)' if action.required else ''}"
        for command, parser in command_lines()
        for action in parser._actions
    ]
    check_golden("flags.txt", joined_lines(rows))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse's layout is Python 3.11's")
def test_help_prose(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    batchjob.main(["--help"])
    texts = [f"== batchjob\n{capsys.readouterr().out}"]
    texts += [f"== {command}\n{parser.format_help()}" for command, parser in command_lines()]
    check_golden("help_prose.txt", joined_lines(texts))
