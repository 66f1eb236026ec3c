"""Packages of a staged tree: Debian's by dpkg-deb (deb(5), deb-control(5)), RPM's by rpmbuild.

The scripts that run when a package is installed or removed are the same for both.
"""

import platform
import shutil
import tempfile
from pathlib import Path

from deploy.packages.contents import HOME, Package, python_version, run, settle, version

_USER = """\
if ! getent passwd {user} >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/batchjob --no-create-home \\
        --shell /usr/sbin/nologin {user}
fi
"""

_SYSTEMD = "if [ -d /run/systemd/system ]; then\n    {command}\nfi\n"


def _before_install(package: Package) -> str:
    """Creates the user of the units, which is kept on removal, as its files are."""
    return _USER.format(user=package.user) if package.user else ""


def _after_install(package: Package) -> str:
    """Creates directories. Nothing is started; what is running is restarted."""
    directories = "".join(
        f"install -d -o {user} -g {user} -m {mode} {path}\n"
        for path, mode, user in package.directories
    )
    units = " ".join(package.restarted())
    command = f"systemctl daemon-reload\n    systemctl try-restart {units} || :"
    return directories + _SYSTEMD.format(command=command)


def _before_remove(package: Package) -> str:
    """Stops the units, except on an upgrade."""
    return _SYSTEMD.format(command=f"systemctl disable --now {' '.join(package.enabled())} || :")


def _after_remove(package: Package) -> str:
    """Removes what Python wrote beside its modules."""
    return f"rm -rf /{HOME}/{package.environment}/lib\n"


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

_DEB_SCRIPT = "#!/bin/sh\nset -e\n{body}"
_DEB_ONLY = 'if [ "$1" = {word} ]; then\n{body}fi\n'


def build_deb(package: Package, tree: Path, python: str, output: Path) -> Path:
    """Write `<name>_<version>_<architecture>.deb` of a staged tree; raises SystemExit."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    target = output / f"{package.name}_{version()}_{architecture}.deb"
    _control(package, python, architecture, tree)
    settle(tree)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(tree), str(target))
    shutil.rmtree(tree / "DEBIAN")
    return target


def _control(package: Package, python: str, architecture: str, tree: Path) -> None:
    depends = [f"python{python_version(python)}", "passwd"]
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
        "preinst": _before_install(package),
        "postinst": _after_install(package),
        "prerm": _DEB_ONLY.format(word="remove", body=_before_remove(package)),
        "postrm": _DEB_ONLY.format(word="remove", body=_after_remove(package)),
    }
    for name, body in bodies.items():
        if body:
            (folder / name).write_text(_DEB_SCRIPT.format(body=body))
            (folder / name).chmod(0o755)


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


def build_rpm(package: Package, tree: Path, python: str, output: Path) -> Path:
    """Write `<name>-<version>-1.<architecture>.rpm` of a staged tree; raises SystemExit."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "package.spec")
        spec.write_text(_rpm_spec(package, python, tree))
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


def _rpm_spec(package: Package, python: str, tree: Path) -> str:
    requires = f"/usr/bin/python{python_version(python)}"
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
        before_install=_before_install(package),
        after_install=_after_install(package),
        before_remove=_before_remove(package),
        after_remove=_after_remove(package),
    )
