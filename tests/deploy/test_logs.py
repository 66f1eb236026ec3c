"""Vector's configurations, held against its own reference of each component's keys.

The program is in no package that a test could use: the tables below have the keys we need as
Vector's generated reference has them (website/cue/reference/components of vectordotdev/vector), and
whatever is not in them is refused.
"""

from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.crds import NUMBER, SWITCH, TEXT, TEXTS, fields, listed

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "deploy/logs").glob("*.yaml"))

BUFFER = fields(
    "type max_size when_full",
    type={"enum": ["disk"]},
    max_size={"type": "integer", "minimum": 268435488},  # the least that Vector takes
    when_full={"enum": ["block", "drop_newest"]},
)
SOURCES = {
    "journald": fields("type", type=TEXT, include_units=listed(TEXT), current_boot_only=SWITCH),
    "file": fields("type include", type=TEXT, include=listed(TEXT), ignore_older_secs=NUMBER),
    "kubernetes_logs": fields(
        "type", type=TEXT, extra_label_selector=TEXT, extra_namespace_label_selector=TEXT
    ),
}
SINKS = {
    "elasticsearch": fields(
        "type inputs endpoints",
        type=TEXT, inputs=listed(TEXT), endpoints=listed(TEXT), query=TEXTS, buffer=BUFFER,
        api_version={"enum": ["auto", "v6", "v7", "v8"]},
        compression={"enum": ["none", "gzip", "snappy", "zlib", "zstd"]},
        healthcheck=fields("enabled", enabled=SWITCH),
    ),
    "loki": fields(
        "type inputs endpoint labels encoding",
        type=TEXT, inputs=listed(TEXT), endpoint=TEXT, labels=TEXTS, buffer=BUFFER,
        encoding=fields("codec", codec={"enum": ["json", "logfmt", "text"]}),
    ),
}  # fmt: skip


def uncommented(text):
    """With the parts that are there to be chosen; each is indented as a component."""
    return "\n".join(
        line.replace("  # ", "  ", 1)
        if line.startswith(("  # jobs:", "  # loki:", "  #   "))
        else line
        for line in text.splitlines()
    )


@pytest.fixture(params=[(path, way) for path in FILES for way in (str, uncommented)],
                ids=lambda param: f"{param[0].stem}-{param[1].__name__}")  # fmt: skip
def config(request):
    path, way = request.param
    return yaml.safe_load(way(path.read_text()))


def test_vector_knows_every_key(config):
    assert config.keys() == {"data_dir", "sources", "sinks"}
    for known, part in ((SOURCES, config["sources"]), (SINKS, config["sinks"])):
        for component in part.values():
            jsonschema.validate(component, known[component["type"]])


def test_every_source_is_sent(config):
    chosen = set(config["sources"]) - {"jobs"}  # to be named where it is wanted
    for sink in config["sinks"].values():
        assert set(sink["inputs"]) == chosen


def test_what_is_there_to_be_chosen_is_read_too():
    whole = yaml.safe_load(uncommented((REPOSITORY / "deploy/logs/vector.yaml").read_text()))
    assert {"jobs", "loki"} <= whole["sources"].keys() | whole["sinks"].keys()


def test_all_of_our_daemons_are_read():
    (path,) = [each for each in FILES if each.stem == "vector"]
    units = set(yaml.safe_load(path.read_text())["sources"]["daemons"]["include_units"])
    ours = {each.stem for each in (REPOSITORY / "deploy/systemd").glob("*.service")}
    assert ours <= units


def test_pods_of_the_chart_have_the_label_that_is_looked_for():
    helpers = (REPOSITORY / "deploy/kubernetes/templates/_helpers.tpl").read_text()
    (path,) = [each for each in FILES if each.stem == "vector-kubernetes"]
    label = yaml.safe_load(path.read_text())["sources"]["batchjob"]["extra_label_selector"]
    assert label.replace("=", ": ") in helpers
