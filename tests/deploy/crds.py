"""What the operators' resources may hold, as far as the chart and deploy/victoriametrics use it.

Their schemas are in no package that a test could use: the tables below have the fields we need,
from the API references of the operators (docs/api.md of VictoriaMetrics/operator, and in
prometheus-operator Documentation/api-reference/api.md). Whatever is not in them is refused.
"""

from typing import Any

import jsonschema

TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
SWITCH = {"type": "boolean"}


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
    resources=fields("requests", requests=fields("storage", storage=TEXT)),
    storageClassName=TEXT,
)
POD = {
    "securityContext": {"type": "object"},
    "resources": {"type": "object"},
    "extraArgs": TEXTS,
}


def scrape(relabelings: str) -> dict[str, Any]:
    """What both operators have; they call the relabeling of targets differently."""
    endpoint = fields(
        "port",
        port=TEXT, path=TEXT, honorLabels=SWITCH,
        interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
        scheme={"enum": ["http", "https"]},
        tlsConfig=fields(serverName=TEXT, insecureSkipVerify=SWITCH),
        **{relabelings: listed(RELABELING)},
    )  # fmt: skip
    return fields("selector endpoints", selector=SELECTOR, endpoints=listed(endpoint))


SPECS = {
    "ServiceMonitor": scrape("relabelings"),
    "VMServiceScrape": scrape("relabelConfigs"),
    "VMAgent": fields(
        "remoteWrite",
        replicaCount={"type": "integer"}, scrapeInterval=TEXT, selectAllByDefault=SWITCH,
        externalLabels=TEXTS, inlineRelabelConfig=listed(RELABELING),
        additionalScrapeConfigs=KEY, statefulMode=SWITCH,
        statefulStorage=fields(volumeClaimTemplate=fields("spec", spec=CLAIM)),
        remoteWrite=listed(fields("url", url=TEXT, bearerTokenSecret=KEY)),
        **POD,
    ),
    "VMSingle": fields(
        "retentionPeriod",
        retentionPeriod={"type": "string", "pattern": "^[0-9]+[hdwy]?$"},
        storage=CLAIM, removePvcAfterDelete=SWITCH, **POD,
    ),
}  # fmt: skip


def check(resource: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError where it holds what its operator does not know."""
    jsonschema.validate(resource["spec"], SPECS[resource["kind"]])
