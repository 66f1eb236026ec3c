"""What the operators' resources may hold.

`.ci/schemas.py` gets prometheus-operator's schemas. VictoriaMetrics' are in no package that a test
could use: the tables below have the fields we need, as its operator's CustomResourceDefinitions
have them (config/crd of VictoriaMetrics/operator). Whatever is not in them is refused, also where
those let everything pass, as in `securityContext`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "batchjob-ci/schemas"


def there(kind: str) -> bool:
    """Whether there is something to hold such a resource against."""
    return kind in SPECS or (SCHEMAS / f"{kind}.json").exists()


def strict(schema: Any) -> Any:
    """Without fields beside those named, and without null for a field that is left out."""
    if isinstance(schema, list):
        return [strict(each) for each in schema if each != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    if isinstance(inner.get("properties"), dict) and inner.get("type") == "object":
        inner.setdefault("additionalProperties", False)
    return inner


TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
SWITCH = {"type": "boolean"}
NUMBER = {"type": "integer"}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
QUANTITY = {"type": "string", "pattern": "^[0-9]+(m|[KMGT]i?)?$"}


def fields(required: str = "", **known: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": known,
        "required": required.split(),
    }


def listed(item: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


KEY = fields("name key", name=TEXT, key=TEXT)
# `source_labels` and `target_label` are accepted as well, but not mixed here.
RELABELING = fields(
    sourceLabels=listed(TEXT), targetLabel=TEXT, regex=TEXT, replacement=TEXT, separator=TEXT,
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod"]},
)  # fmt: skip
SELECTOR = fields(matchLabels=TEXTS)
CLAIM = fields(
    "resources",
    accessModes=listed({"enum": ["ReadWriteOnce"]}),
    resources=fields("requests", requests=fields("storage", storage=QUANTITY)),
    storageClassName=TEXT,
)
AMOUNTS = fields(cpu=QUANTITY, memory=QUANTITY)
POD = {
    "securityContext": fields(
        runAsNonRoot=SWITCH, runAsUser=NUMBER, runAsGroup=NUMBER, fsGroup=NUMBER,
        seccompProfile=fields("type", type={"enum": ["RuntimeDefault"]}),
    ),
    "resources": fields(requests=AMOUNTS, limits=AMOUNTS),
    "extraArgs": TEXTS,
    "port": {"type": "string", "pattern": "^[0-9]+$"},
}  # fmt: skip


ENDPOINT = fields(
    "port",
    port=TEXT, path=TEXT, honorLabels=SWITCH,
    interval=DURATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=fields(
        serverName=TEXT, insecureSkipVerify=SWITCH, ca=fields(secret=KEY, configMap=KEY)
    ),
    relabelConfigs=listed(RELABELING),
)  # fmt: skip
SPECS = {
    "VMServiceScrape": fields("selector endpoints", selector=SELECTOR, endpoints=listed(ENDPOINT)),
    "VMAgent": fields(
        "remoteWrite",
        replicaCount=NUMBER, scrapeInterval=DURATION, selectAllByDefault=SWITCH,
        externalLabels=TEXTS, inlineRelabelConfig=listed(RELABELING),
        additionalScrapeConfigs=KEY, statefulMode=SWITCH,
        statefulStorage=fields(volumeClaimTemplate=fields("spec", spec=CLAIM)),
        remoteWrite=listed(fields("url", url=TEXT, bearerTokenSecret=KEY)),
        disableSelfServiceScrape=SWITCH,
        **POD,
    ),
    "VMSingle": fields(
        "retentionPeriod",
        retentionPeriod={"type": "string", "pattern": "^[0-9]+[hdwy]?$"},
        storage=CLAIM, removePvcAfterDelete=SWITCH, disableSelfServiceScrape=SWITCH, **POD,
    ),
}  # fmt: skip


def check(resource: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError where it holds what its operator does not know."""
    kind = resource["kind"]
    if kind in SPECS:
        jsonschema.validate(resource["spec"], SPECS[kind])
    else:
        schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
        jsonschema.validate(resource, strict(schema))
