"""The files for Open OnDemand, which fit each other and the server's pages."""

import re
from pathlib import Path

import yaml

from batchjob_stats_server.pages import embed

DEPLOY = Path(__file__).parents[2] / "deploy/ondemand"
# Keys of an app's manifest, as in Open OnDemand's OodApp and Manifest.
KEYS = {"name", "description", "icon", "url", "category", "subcategory", "role", "new_window"}


def loaded(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def test_the_app_is_a_link():
    manifest = loaded("app/manifest.yml")
    assert manifest.keys() <= KEYS
    assert manifest["url"].startswith("https://")
    assert manifest["new_window"] is True


def test_the_layout_shows_the_widget():
    (row,) = loaded("batchjob.yml")["dashboard_layout"]["rows"]
    assert sum(column["width"] for column in row["columns"]) == 12  # of Bootstrap's grid
    widgets = [widget for column in row["columns"] for widget in column["widgets"]]
    made = [
        path.name.removeprefix("_").removesuffix(".html.erb")
        for path in (DEPLOY / "widgets").iterdir()
    ]
    assert set(made) <= set(widgets)


def test_the_widget_s_frame_has_a_page_of_the_server():
    widget = (DEPLOY / "widgets/_batchjob_jobs.html.erb").read_text()
    (path,) = re.findall(r"html_escape\(server\) %>(/[^\"]*)\"", widget)
    assert path in {route.path for route in embed.router.routes}
    assert widget.index("<iframe") < widget.index('title="My jobs')  # for screen readers
