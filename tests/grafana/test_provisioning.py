"""The provisioning files name what there is."""

from pathlib import Path

import yaml

from batchjob_stats_server.options import AuthOptions
from grafana.generate.__main__ import FOLDER
from grafana.generate.plugins import PLUGINS, PROMETHEUS

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
