"""The files for Open OnDemand agree with each other and with the server's pages."""

import re
from pathlib import Path

import yaml

from batchjob_stats_server.pages import jobs

DEPLOY = Path(__file__).parents[2] / "deploy/ondemand"
# Keys of an app's manifest, as in Open OnDemand's OodApp and Manifest.
MANIFEST_KEYS = {
    "name",
    "description",
    "icon",
    "url",
    "category",
    "subcategory",
    "role",
    "new_window",
}


def load_yaml(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def test_app_opens_server_in_new_window():
    manifest = load_yaml("app/manifest.yml")
    assert manifest.keys() <= MANIFEST_KEYS
    assert manifest["url"].startswith("https://")
    assert manifest["new_window"] is True


def test_layout_contains_every_widget():
    (row,) = load_yaml("batchjob.yml")["dashboard_layout"]["rows"]
    assert sum(column["width"] for column in row["columns"]) == 12  # of Bootstrap's grid
    widgets = [widget for column in row["columns"] for widget in column["widgets"]]
    widget_files = [
        path.name.removeprefix("_").removesuffix(".html.erb")
        for path in (DEPLOY / "widgets").iterdir()
    ]
    assert set(widget_files) <= set(widgets)


def test_widget_frame_shows_page_of_the_server():
    widget = (DEPLOY / "widgets/_batchjob_jobs.html.erb").read_text()
    (path,) = re.findall(r"html_escape\(server\) %>(/[^\"]*)\"", widget)
    assert path in {route.path for route in jobs.router.routes}
    assert widget.index("<iframe") < widget.index('title="My jobs')  # for screen readers
