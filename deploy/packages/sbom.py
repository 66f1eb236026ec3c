"""Software bills of materials (CycloneDX) of the packages' dependencies."""

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from batchjob import __version__

_NAMESPACE = uuid.UUID("6f1f8b0e-6b0c-5d0c-9a53-7f7b6d0f2c11")
"""Of our documents' serial numbers: the same content has the same one."""

_OURS = "batchjob-monitoring"


def write(name: str, site: Path, seconds: int, target: Path) -> Path:
    """Describe the distributions in a directory, as of that time (since 1970)."""
    found = sorted(_components(site), key=lambda each: each.purl.to_string() if each.purl else "")
    product = Component(
        name=name, version=__version__, type=ComponentType.APPLICATION, bom_ref=name
    )
    bom = Bom(components=found)
    bom.metadata.component = product
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    content = " ".join(each.bom_ref.value or "" for each in found)
    bom.serial_number = uuid.uuid5(_NAMESPACE, f"{name} {__version__} {content}")
    bom.register_dependency(product, found)
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")
    return target


def _components(site: Path) -> Iterator[Component]:
    for each in distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        url = PackageURL("pypi", None, name, each.version)
        licence = _licence(each)
        yield Component(
            name=name,
            version=each.version,
            type=ComponentType.LIBRARY,
            purl=None if name == _OURS else url,
            bom_ref=url.to_string(),
            licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        )


def _licence(found: Distribution) -> str:
    """SPDX expression (PEP 639), else the short name in older packages, else ""."""
    for key in ("License-Expression", "License"):
        for told in found.metadata.get_all(key) or ():
            if told and "\n" not in told and len(told) < 80:
                return str(told)
    names = [
        line.rpartition(" :: ")[2]
        for line in found.metadata.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    return names[0] if len(names) == 1 else ""
