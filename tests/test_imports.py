"""Every module can be loaded."""

import importlib
import pkgutil

import pytest

PACKAGES = (
    "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
    "collectors", "grafana.generate", "deploy.packages",
)  # fmt: skip
# Scripts that do their work when they are loaded, and what alembic loads itself.
SCRIPTS = ("__main__", "batchjob_stats_db.database.migrations.env")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_loaded(package):
    path = importlib.import_module(package).__path__
    names = [each.name for each in pkgutil.walk_packages(path, f"{package}.")]
    assert names
    for name in names:
        if not name.endswith(SCRIPTS):
            importlib.import_module(name)
