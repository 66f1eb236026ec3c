"""Vector's configurations are valid according to its reference of each component's keys.

No package has the program: the tables below list the keys that we use, as in Vector's generated
reference (website/cue/reference/components of vectordotdev/vector). Unknown keys are rejected.
"""

from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.crds import BOOLEAN, INTEGER, STRING, STRING_MAP, list_schema, object_schema

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "deploy/logs").glob("*.yaml"))

BUFFER = object_schema(
    "type max_size when_full",
    type={"enum": ["disk"]},
    max_size={"type": "integer", "minimum": 268435488},  # Vector's minimum
    when_full={"enum": ["block", "drop_newest"]},
)
SOURCES = {
    "journald": object_schema(
        "type", type=STRING, include_units=list_schema(STRING), current_boot_only=BOOLEAN
    ),
    "file": object_schema(
        "type include", type=STRING, include=list_schema(STRING), ignore_older_secs=INTEGER
    ),
    "kubernetes_logs": object_schema(
        "type", type=STRING, extra_label_selector=STRING, extra_namespace_label_selector=STRING
    ),
}
SINKS = {
    "elasticsearch": object_schema(
        "type inputs endpoints",
        type=STRING, inputs=list_schema(STRING), endpoints=list_schema(STRING),
        query=STRING_MAP, buffer=BUFFER,
        api_version={"enum": ["auto", "v6", "v7", "v8"]},
        compression={"enum": ["none", "gzip", "snappy", "zlib", "zstd"]},
        healthcheck=object_schema("enabled", enabled=BOOLEAN),
    ),
    "loki": object_schema(
        "type inputs endpoint labels encoding",
        type=STRING, inputs=list_schema(STRING), endpoint=STRING, labels=STRING_MAP, buffer=BUFFER,
        encoding=object_schema("codec", codec={"enum": ["json", "logfmt", "text"]}),
    ),
}  # fmt: skip


def with_optional_parts(text):
    """The configuration with its commented-out components, which are indented like the others."""
    return "\n".join(
        line.replace("  # ", "  ", 1)
        if line.startswith(("  # jobs:", "  # loki:", "  #   "))
        else line
        for line in text.splitlines()
    )


@pytest.fixture(
    params=[(path, convert) for path in FILES for convert in (str, with_optional_parts)],
    ids=lambda param: f"{param[0].stem}-{param[1].__name__}",
)
def config(request):
    path, convert = request.param
    return yaml.safe_load(convert(path.read_text()))


def test_vector_knows_every_key(config):
    assert config.keys() == {"data_dir", "sources", "sinks"}
    for schemas, part in ((SOURCES, config["sources"]), (SINKS, config["sinks"])):
        for component in part.values():
            jsonschema.validate(component, schemas[component["type"]])


def test_every_sink_receives_every_source(config):
    default_sources = set(config["sources"]) - {
        "jobs"
    }  # sinks name it explicitly where it is wanted
    for sink in config["sinks"].values():
        assert set(sink["inputs"]) == default_sources


def test_optional_parts_can_be_uncommented():
    config = yaml.safe_load(
        with_optional_parts((REPOSITORY / "deploy/logs/vector.yaml").read_text())
    )
    assert {"jobs", "loki"} <= config["sources"].keys() | config["sinks"].keys()


def test_logs_of_all_daemons_are_collected():
    (path,) = [each for each in FILES if each.stem == "vector"]
    units = set(yaml.safe_load(path.read_text())["sources"]["daemons"]["include_units"])
    daemons = {each.stem for each in (REPOSITORY / "deploy/systemd").glob("*.service")}
    assert daemons <= units


def test_label_selector_matches_pods_of_the_chart():
    helpers = (REPOSITORY / "deploy/kubernetes/templates/_helpers.tpl").read_text()
    (path,) = [each for each in FILES if each.stem == "vector-kubernetes"]
    label = yaml.safe_load(path.read_text())["sources"]["batchjob"]["extra_label_selector"]
    assert label.replace("=", ": ") in helpers
