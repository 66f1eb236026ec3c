"""Debian packages, built by dpkg-deb (deb(5), deb-control(5))."""

import platform
import shutil
from pathlib import Path

from deploy.packages import scripts
from deploy.packages.contents import Interpreter, Package, run, settle, version

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}

_CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: The batchjob developers <batchjob@localhost>
Section: admin
Priority: optional
Depends: {depends}
Installed-Size: {kilobytes}
Description: {summary}
 Job monitoring for HPC centres: what each batch job uses, burns and emits.
 The package brings its Python dependencies along, below /opt/batchjob.
"""

_MAINTAINER = "#!/bin/sh\nset -e\n{body}"
_ONLY = 'if [ "$1" = {word} ]; then\n{body}fi\n'


def build(package: Package, tree: Path, python: Interpreter, output: Path) -> Path:
    """Write `<name>_<version>_<architecture>.deb` of a staged tree; raises SystemExit."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    target = output / f"{package.name}_{version()}_{architecture}.deb"
    _control(package, python, architecture, tree)
    settle(tree)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(tree), str(target))
    shutil.rmtree(tree / "DEBIAN")
    return target


def _control(package: Package, python: Interpreter, architecture: str, tree: Path) -> None:
    depends = [f"python{python.version}", "passwd"]
    if package.needs:
        depends.append(f"{package.needs} (= {version()})")
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    folder = tree / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(
        _CONTROL.format(
            name=package.name,
            version=version(),
            architecture=architecture,
            depends=", ".join(depends),
            kilobytes=size // 1024,
            summary=package.summary,
        )
    )
    (folder / "conffiles").write_text("".join(f"/etc/{name}\n" for name in package.configuration))
    bodies = {
        "preinst": scripts.before_install(package),
        "postinst": scripts.after_install(package),
        "prerm": _ONLY.format(word="remove", body=scripts.before_remove(package)),
        "postrm": _ONLY.format(word="remove", body=scripts.after_remove(package)),
    }
    for name, body in bodies.items():
        if body:
            (folder / name).write_text(_MAINTAINER.format(body=body))
            (folder / name).chmod(0o755)
