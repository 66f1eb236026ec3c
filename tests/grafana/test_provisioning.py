"""The provisioning files name what there is."""

import subprocess
from pathlib import Path

import yaml

from batchjob_stats_server.options import AuthOptions
from grafana.generate.__main__ import FOLDER
from grafana.generate.plugins import PLUGINS, PROMETHEUS
from tests.e2e.reader import text

PROVISIONING = FOLDER.parent / "provisioning"


def read(kind):
    return yaml.safe_load((PROVISIONING / kind / "batchjob.yml").read_text())


def test_there_is_a_data_source_for_each_kind_that_dashboards_use():
    sources = read("datasources")["datasources"]
    assert [each["type"] for each in sources] == [PROMETHEUS, *(each.type for each in PLUGINS)]
    assert len({each["uid"] for each in sources}) == len(sources)


def test_all_send_the_secret_in_the_header_that_the_server_reads_by_default():
    for source in read("datasources")["datasources"]:
        assert source["jsonData"]["httpHeaderName1"] == AuthOptions().secret_header
        assert source["secureJsonData"]["httpHeaderValue1"].startswith("$__file{")


def test_providers_read_folders_that_are_there():
    for provider in read("dashboards")["providers"]:
        assert (FOLDER / Path(provider["options"]["path"]).name).is_dir()


def test_the_commands_of_the_page_put_all_in_place(tmp_path):
    """docs/grafana.md"""
    for made in ("provisioning/datasources", "provisioning/dashboards"):
        (tmp_path / made).mkdir(parents=True)
    block = text("docs/grafana.md", "cp grafana/provisioning", {"/etc/grafana": str(tmp_path)})
    subprocess.run(["bash", "-euc", block], cwd=FOLDER.parents[1], check=True)
    for kind in ("datasources", "dashboards"):
        copied = (tmp_path / f"provisioning/{kind}/batchjob.yml").read_text()
        assert yaml.safe_load(copied) == read(kind)
    for provider in read("dashboards")["providers"]:
        shown = provider["options"]["path"].replace("/etc/grafana", str(tmp_path))
        dashboards = [path.read_text() for path in Path(shown).glob("*.json")]
        assert dashboards
        assert not any("http://localhost:10912" in each for each in dashboards)
    assert (
        "https://stats.example.org:10912/" in (tmp_path / "batchjob/infinity/job.json").read_text()
    )
