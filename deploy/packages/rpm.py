"""RPM packages, built by rpmbuild."""

import platform
import tempfile
from pathlib import Path

from deploy.packages import scripts
from deploy.packages.contents import HOME, Interpreter, Package, run, version

# Nothing must be stripped, compiled or searched for dependencies: the tree is complete.
_SPEC = """\
%global __os_install_post %{{nil}}
%global _build_id_links none
%global debug_package %{{nil}}
Name: {name}
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
AutoReqProv: no
Requires: {requires}
Requires(pre): shadow-utils

%description
Job monitoring for HPC centres: what each batch job uses, burns and emits.
The package brings its Python dependencies along, below /opt/batchjob.

%install
cp -a {tree}/. %{{buildroot}}

%files
{files}

%pre
{before_install}
%post
{after_install}
%preun
if [ "$1" = 0 ]; then
{before_remove}fi
%postun
if [ "$1" = 0 ]; then
{after_remove}fi
"""


def build(package: Package, tree: Path, python: Interpreter, output: Path) -> Path:
    """Write `<name>-<version>-1.<architecture>.rpm` of a staged tree; raises SystemExit."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "package.spec")
        spec.write_text(_spec(package, python, tree))
        run(
            "rpmbuild", "-bb", "--define", f"_topdir {folder}/rpmbuild",
            "--define", "use_source_date_epoch_as_buildtime 1",
            "--define", "clamp_mtime_to_source_date_epoch 1",
            "--define", "_buildhost batchjob",
            "--define", f"_rpmdir {output}",
            "--define", "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
            "--define", "_binary_payload w3.xzdio", str(spec),
        )  # fmt: skip
    return output / f"{package.name}-{version()}-1.{platform.machine()}.rpm"


def _spec(package: Package, python: Interpreter, tree: Path) -> str:
    requires = f"/usr/bin/python{python.version}"
    if package.needs:
        requires += f", {package.needs} = {version()}"
    configured = {f"/etc/{name}" for name in package.configuration}
    files = [f"/{HOME}/{package.environment}"]
    for path in sorted(tree.rglob("*")):
        inside = "/" + str(path.relative_to(tree))
        if inside.startswith(files[0]) or (path.is_dir() and not path.is_symlink()):
            continue
        files.append(f"%config(noreplace) {inside}" if inside in configured else inside)
    return _SPEC.format(
        name=package.name,
        version=version(),
        summary=package.summary,
        requires=requires,
        tree=tree,
        files="\n".join(["%defattr(-,root,root,-)", *files]),
        before_install=scripts.before_install(package),
        after_install=scripts.after_install(package),
        before_remove=scripts.before_remove(package),
        after_remove=scripts.after_remove(package),
    )
