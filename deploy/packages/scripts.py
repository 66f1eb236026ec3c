"""Scripts run when a package is installed or removed, the same for Debian and RPM."""

from deploy.packages.contents import HOME, Package

_USER = """\
if ! getent passwd {user} >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/batchjob --no-create-home \\
        --shell /usr/sbin/nologin {user}
fi
"""

_DIRECTORY = "install -d -o {user} -g {user} -m {mode} {path}\n"

_SYSTEMD = "if [ -d /run/systemd/system ]; then\n    {command}\nfi\n"


def before_install(package: Package) -> str:
    """Creates the user of the units, which is kept on removal, as its files are."""
    return _USER.format(user=package.user) if package.user else ""


def after_install(package: Package) -> str:
    """Creates directories. Nothing is started; what is running is restarted."""
    directories = "".join(_DIRECTORY.format(**each._asdict()) for each in package.directories)
    units = " ".join(package.restarted())
    command = f"systemctl daemon-reload\n    systemctl try-restart {units} || :"
    return directories + _SYSTEMD.format(command=command)


def before_remove(package: Package) -> str:
    """Stops the units, except on an upgrade."""
    return _SYSTEMD.format(command=f"systemctl disable --now {' '.join(package.enabled())} || :")


def after_remove(package: Package) -> str:
    """Removes what Python wrote beside its modules."""
    return f"rm -rf /{HOME}/{package.environment}/lib\n"
