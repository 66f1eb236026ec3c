"""The provisioning files refer to existing data sources, headers and folders."""

import subprocess
from pathlib import Path

import yaml

from batchjob_stats_server.api import me
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.options import SECRET_HEADER
from grafana.generate.__main__ import FOLDER
from grafana.generate.plugins import PLUGINS, PROMETHEUS
from tests.e2e.reader import text

PROVISIONING = FOLDER.parent / "provisioning"


def load_provisioning(kind):
    return yaml.safe_load((PROVISIONING / kind / "batchjob.yml").read_text())


def test_every_data_source_type_of_dashboards_is_provisioned():
    sources = load_provisioning("datasources")["datasources"]
    assert [each["type"] for each in sources] == [PROMETHEUS, *(each.type for each in PLUGINS)]
    assert len({each["uid"] for each in sources}) == len(sources)


def test_data_sources_send_secret_in_default_header_of_server():
    for source in load_provisioning("datasources")["datasources"]:
        assert source["jsonData"]["httpHeaderName1"] == SECRET_HEADER
        assert source["secureJsonData"]["httpHeaderValue1"].startswith("$__file{")


def test_health_check_is_below_the_address_that_infinity_prefixes():
    """Infinity puts the address of the data source before any other (pkg/infinity/request.go)."""
    sources = load_provisioning("datasources")["datasources"]
    (source,) = [each for each in sources if "customHealthCheckUrl" in each["jsonData"]]
    address = source["jsonData"]["customHealthCheckUrl"]
    assert address == f"{source['url']}/ready"
    assert f"{PREFIX}/ready" in {route.path for route in me.health.routes}


def test_dashboard_providers_refer_to_existing_folders():
    for provider in load_provisioning("dashboards")["providers"]:
        assert (FOLDER / Path(provider["options"]["path"]).name).is_dir()


def test_documented_commands_install_files_and_set_server_url(tmp_path):
    """docs/grafana.md"""
    for folder in ("provisioning/datasources", "provisioning/dashboards"):
        (tmp_path / folder).mkdir(parents=True)
    block = text("docs/grafana.md", "cp grafana/provisioning", {"/etc/grafana": str(tmp_path)})
    subprocess.run(["bash", "-euc", block], cwd=FOLDER.parents[1], check=True)
    for kind in ("datasources", "dashboards"):
        copied = (tmp_path / f"provisioning/{kind}/batchjob.yml").read_text()
        assert yaml.safe_load(copied) == load_provisioning(kind)
    for provider in load_provisioning("dashboards")["providers"]:
        installed_path = provider["options"]["path"].replace("/etc/grafana", str(tmp_path))
        dashboards = [path.read_text() for path in Path(installed_path).glob("*.json")]
        assert dashboards
        assert not any("http://localhost:10912" in each for each in dashboards)
    assert (
        "https://stats.example.org:10912/" in (tmp_path / "batchjob/infinity/job.json").read_text()
    )
