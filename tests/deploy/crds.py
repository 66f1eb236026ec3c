"""Schemas of the resources of prometheus-operator and VictoriaMetrics' operator.

`.ci/schemas.py` downloads prometheus-operator's schemas. No package has those of VictoriaMetrics:
the tables below list the fields that we use, as its operator's CustomResourceDefinitions have them
(config/crd of VictoriaMetrics/operator). Unknown fields are rejected, also where the original
schemas accept anything, as in `securityContext`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "batchjob-ci/schemas"


def has_schema(kind: str) -> bool:
    """Whether a schema of this kind of resource is available."""
    return kind in SPECS or (SCHEMAS / f"{kind}.json").exists()


def without_unknown_fields(schema: Any) -> Any:
    """The schema without undeclared fields, and without null for optional fields."""
    if isinstance(schema, list):
        return [without_unknown_fields(each) for each in schema if each != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    inner = {key: without_unknown_fields(value) for key, value in schema.items()}
    if isinstance(inner.get("properties"), dict) and inner.get("type") == "object":
        inner.setdefault("additionalProperties", False)
    return inner


STRING = {"type": "string"}
STRING_MAP = {"type": "object", "additionalProperties": STRING}
BOOLEAN = {"type": "boolean"}
INTEGER = {"type": "integer"}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
QUANTITY = {"type": "string", "pattern": "^[0-9]+(m|[KMGT]i?)?$"}


def object_schema(required: str = "", **known: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": known,
        "required": required.split(),
    }


def list_schema(item: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


KEY_REFERENCE = object_schema("name key", name=STRING, key=STRING)
# `source_labels` and `target_label` are accepted as well, but not mixed here.
RELABELING = object_schema(
    sourceLabels=list_schema(STRING), targetLabel=STRING, regex=STRING, replacement=STRING,
    separator=STRING,
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod"]},
)  # fmt: skip
SELECTOR = object_schema(matchLabels=STRING_MAP)
VOLUME_CLAIM = object_schema(
    "resources",
    accessModes=list_schema({"enum": ["ReadWriteOnce"]}),
    resources=object_schema("requests", requests=object_schema("storage", storage=QUANTITY)),
    storageClassName=STRING,
)
RESOURCE_AMOUNTS = object_schema(cpu=QUANTITY, memory=QUANTITY)
POD_FIELDS = {
    "securityContext": object_schema(
        runAsNonRoot=BOOLEAN, runAsUser=INTEGER, runAsGroup=INTEGER, fsGroup=INTEGER,
        seccompProfile=object_schema("type", type={"enum": ["RuntimeDefault"]}),
    ),
    "resources": object_schema(requests=RESOURCE_AMOUNTS, limits=RESOURCE_AMOUNTS),
    "extraArgs": STRING_MAP,
    "port": {"type": "string", "pattern": "^[0-9]+$"},
}  # fmt: skip


ENDPOINT = object_schema(
    "port",
    port=STRING, path=STRING, honorLabels=BOOLEAN,
    interval=DURATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=object_schema(
        serverName=STRING, insecureSkipVerify=BOOLEAN,
        ca=object_schema(secret=KEY_REFERENCE, configMap=KEY_REFERENCE),
    ),
    relabelConfigs=list_schema(RELABELING), metricRelabelConfigs=list_schema(RELABELING),
)  # fmt: skip
SPECS = {
    "VMServiceScrape": object_schema(
        "selector endpoints",
        selector=SELECTOR, endpoints=list_schema(ENDPOINT), sampleLimit=INTEGER,
    ),
    "VMAgent": object_schema(
        "remoteWrite",
        replicaCount=INTEGER, scrapeInterval=DURATION, selectAllByDefault=BOOLEAN,
        externalLabels=STRING_MAP, inlineRelabelConfig=list_schema(RELABELING),
        additionalScrapeConfigs=KEY_REFERENCE, statefulMode=BOOLEAN,
        statefulStorage=object_schema(volumeClaimTemplate=object_schema("spec", spec=VOLUME_CLAIM)),
        remoteWrite=list_schema(object_schema("url", url=STRING, bearerTokenSecret=KEY_REFERENCE)),
        disableSelfServiceScrape=BOOLEAN,
        **POD_FIELDS,
    ),
    "VMSingle": object_schema(
        "retentionPeriod",
        retentionPeriod={"type": "string", "pattern": "^[0-9]+[hdwy]?$"},
        storage=VOLUME_CLAIM, removePvcAfterDelete=BOOLEAN, disableSelfServiceScrape=BOOLEAN,
        **POD_FIELDS,
    ),
}  # fmt: skip


def validate(resource: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError if the operator does not know a field or value."""
    kind = resource["kind"]
    if kind in SPECS:
        jsonschema.validate(resource["spec"], SPECS[kind])
    else:
        schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
        jsonschema.validate(resource, without_unknown_fields(schema))
