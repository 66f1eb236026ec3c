"""What runs when a package comes or goes, the same for Debian and RPM."""

from deploy.packages.contents import HOME, Package

_USER = """\
if ! getent passwd {user} >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/batchjob --no-create-home \\
        --shell /usr/sbin/nologin {user}
fi
"""

_SYSTEMD = "if [ -d /run/systemd/system ]; then\n    {command}\nfi\n"


def before_install(package: Package) -> str:
    """Makes the user that the units name; it stays when the package goes, as its files do."""
    return _USER.format(user=package.user) if package.user else ""


def after_install(package: Package) -> str:
    """Nothing starts by itself; what runs already is begun anew."""
    units = " ".join(package.units)
    command = f"systemctl daemon-reload\n    systemctl try-restart {units} || :"
    return _SYSTEMD.format(command=command)


def before_remove(package: Package) -> str:
    """Ends what runs. Not on an upgrade."""
    return _SYSTEMD.format(command=f"systemctl disable --now {' '.join(package.units)} || :")


def after_remove(package: Package) -> str:
    """Takes away what Python wrote beside its modules."""
    return f"rm -rf /{HOME}/{package.environment}/lib\n"
