"""What runs when a package comes or goes, the same for Debian and RPM."""

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
    """Makes the user that the units name; it stays when the package goes, as its files do."""
    return _USER.format(user=package.user) if package.user else ""


def after_install(package: Package) -> str:
    """Makes directories. Nothing starts by itself; what runs already is restarted."""
    directories = "".join(_DIRECTORY.format(**each._asdict()) for each in package.directories)
    units = " ".join(package.restarted())
    command = f"systemctl daemon-reload\n    systemctl try-restart {units} || :"
    return directories + _SYSTEMD.format(command=command)


def before_remove(package: Package) -> str:
    """Ends what runs. Not on an upgrade."""
    return _SYSTEMD.format(command=f"systemctl disable --now {' '.join(package.enabled())} || :")


def after_remove(package: Package) -> str:
    """Takes away what Python wrote beside its modules."""
    return f"rm -rf /{HOME}/{package.environment}/lib\n"
