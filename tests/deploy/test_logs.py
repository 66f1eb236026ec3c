"""Configurations of log shippers are valid according to their references of components' keys.

No package has the programs: the tables below list the keys that we use, as in Vector's generated
reference (website/cue/reference/components of vectordotdev/vector), in the arguments of Alloy's
components (internal/component of grafana/alloy), and in the properties of Fluent Bit's plugins
(plugins of fluent/fluent-bit). Unknown keys are rejected.
"""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.crds import BOOLEAN, INTEGER, STRING, STRING_MAP, list_schema, object_schema

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "deploy/logs").glob("vector*.yaml"))
ALLOY = (REPOSITORY / "deploy/logs/config.alloy").read_text()
FLUENT_BIT = (REPOSITORY / "deploy/logs/fluent-bit.yaml").read_text()
DAEMONS = {each.stem for each in (REPOSITORY / "deploy/systemd").glob("*.service")}

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
    assert units >= DAEMONS
    (regex,) = re.findall(r'regex += "(.*)"', ALLOY)
    alloy = re.compile(regex.replace("\\\\", "\\"))
    assert all(alloy.fullmatch(f"{unit}.service") for unit in units - {"init.scope"})
    assert alloy.fullmatch("init.scope")
    assert not alloy.fullmatch("user@1000.service")
    (journal,) = [each for each in fluent_bit(str)["inputs"] if each["name"] == "systemd"]
    filters = {each.removeprefix("_SYSTEMD_UNIT=") for each in journal["systemd_filter"]}
    assert filters == {unit if "." in unit else f"{unit}.service" for unit in units}


def test_label_selector_matches_pods_of_the_chart():
    helpers = (REPOSITORY / "deploy/kubernetes/templates/_helpers.tpl").read_text()
    (path,) = [each for each in FILES if each.stem == "vector-kubernetes"]
    label = yaml.safe_load(path.read_text())["sources"]["batchjob"]["extra_label_selector"]
    assert label.replace("=", ": ") in helpers


# Arguments by the block that has them; the first word of a component's block is its name.
ALLOY_KEYS = {
    "loki.source.journal": "format_as_json max_age path relabel_rules matches forward_to labels",
    "loki.relabel": "forward_to max_cache_size",
    "rule": "source_labels separator regex modulus target_label replacement action",
    "local.file_match": "path_targets sync_period ignore_older_than",
    "loki.source.file": "targets forward_to encoding tail_from_end",
    "loki.write": "external_labels max_streams",
    "endpoint": "name url tenant_id headers",
}


def test_alloy_knows_every_key_and_component():
    text = re.sub(r"(?m)(^|[ \t])//.*", "", ALLOY)
    blocks = re.findall(r'(?m)^\s*([\w.]+)(?: "(\w+)")? \{$', text)
    defined = {f"{kind}.{label}" for kind, label in blocks if label}
    assert {kind for kind, _ in blocks} == ALLOY_KEYS.keys()
    open_blocks, lists = [], 0
    for line in filter(None, map(str.strip, text.splitlines())):
        if found := re.fullmatch(r"([\w.]+)(?: \"\w+\")? \{", line):
            open_blocks.append(found[1])
        elif line == "}":
            open_blocks.pop()
        elif not lists:
            key = re.match(r"(\w+) +=", line)
            assert key, line
            assert key[1] in ALLOY_KEYS[open_blocks[-1]].split(), line
        lists += line.endswith("[") - (line == "]")
    assert not open_blocks
    assert lists == 0
    for component in re.findall(
        r"\b((?:loki|local)\.\w+(?:\.\w+)?)\.(?:receiver|rules|targets)\b", text
    ):
        assert component in defined


NETWORK = {"host": STRING, "port": INTEGER, "retry_limit": {"enum": ["no_limits"]}}
ANY = {"match": STRING, "tag": STRING, "storage.type": {"enum": ["filesystem", "memory"]}}
FLUENT_BIT_PLUGINS = {
    "systemd": {"db": STRING, "systemd_filter_type": {"enum": ["and", "or"]},
                "systemd_filter": list_schema(STRING)},
    "tail": {"path": STRING, "path_key": STRING, "key": STRING, "db": STRING,
             "ignore_older": {"type": "string", "pattern": "^[0-9]+[smhd]$"}},
    "sysinfo": {"hostname_key": STRING},
    "modify": {"add": list_schema(STRING)},
    "http": {**NETWORK, "uri": STRING, "format": {"enum": ["json", "json_lines", "msgpack"]},
             "json_date_format": {"enum": ["double", "epoch", "iso8601"]},
             "compress": {"enum": ["gzip"]}},
    "loki": {**NETWORK, "label_keys": STRING, "line_format": {"enum": ["json", "key_value"]}},
}  # fmt: skip


def fluent_bit(convert):
    return yaml.safe_load(convert(FLUENT_BIT))["pipeline"]


def with_loki(text):
    """The configuration with its commented-out output."""
    return re.sub(r"(?m)^    # (- name: loki| {2})", r"    \1", text)


@pytest.mark.parametrize("convert", [str, with_loki])
def test_fluent_bit_knows_every_key(convert):
    pipeline = fluent_bit(convert)
    assert pipeline.keys() == {"inputs", "filters", "outputs"}
    assert yaml.safe_load(FLUENT_BIT).keys() == {"service", "pipeline"}
    for part in pipeline.values():
        for plugin in part:
            known = FLUENT_BIT_PLUGINS[plugin["name"]]
            jsonschema.validate(plugin, object_schema("name", name=STRING, **ANY, **known))
    assert len(pipeline["outputs"]) == (2 if convert is with_loki else 1)


def test_all_shippers_identify_lines_by_cluster_and_host():
    (path,) = [each for each in FILES if each.stem == "vector"]
    vector = yaml.safe_load(path.read_text())["sinks"]["victorialogs"]["query"]["_stream_fields"]
    (http,) = fluent_bit(str)["outputs"]
    assert f"_stream_fields={vector}&" in http["uri"]
    assert {"cluster", "host"} < set(vector.split(","))
    assert 'target_label  = "host"' in ALLOY
    assert ALLOY.count('cluster = "cluster"') == 4
