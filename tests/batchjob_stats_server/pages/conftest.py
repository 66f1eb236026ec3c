"""Fixtures and helpers to request pages as a browser does."""

import contextlib

import html5lib
import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import ReportOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import with_example_history

HTML = {"Accept": "text/html,application/xhtml+xml"}


def parse_page(answer):
    """The document of a page; invalid HTML fails the test."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    parser = html5lib.HTMLParser(strict=False, namespaceHTMLElements=False)
    document = parser.parse(answer.text)
    assert not parser.errors, [
        (place, code, answer.text.splitlines()[place[0] - 1][:200])
        for place, code, _ in parser.errors
    ]
    ids = [each.get("id") for each in document.iter() if each.get("id")]
    assert len(ids) == len(set(ids)), sorted(ids)
    return document


def svg_elements(document, name):
    """The SVG elements of a class."""
    return [
        each
        for each in document.iter("{http://www.w3.org/2000/svg}svg")
        if each.get("class") == name
    ]


def element_text(element):
    """The text of an element, spaces folded; as people read it, without what is hidden."""
    return " ".join("".join(element.itertext()).replace("\u202f", " ").split())


@pytest.fixture
def page(proxy_client):
    """Get a page as somebody: `page("alice", "/jobs", state="FAILED")` is its document."""

    def get(who, path, status=200, /, **params):
        answer = proxy_client(who).get(path, params=params, headers=HTML)
        assert answer.status_code == status, answer.text
        return parse_page(answer)

    return get


@pytest.fixture(scope="module")
def example_services(tmp_path_factory):
    """Services of the example site, and the token of its admin."""
    path = tmp_path_factory.mktemp("example") / "jobs.db"
    _, root_token = example_site.make(path)
    web = ServerWebOptions(allowed_host=("testserver",))
    report = ReportOptions(
        help_url="https://hpc.example.org/advice#{rule}", mail_address="{user}@example.org"
    )
    settings = ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web, report=report)
    return build(settings), root_token


@contextlib.contextmanager
def open_as(token, services):
    """Get a page as somebody who has a token."""
    with TestClient(app.make(services)) as client:
        headers = {"Authorization": f"Bearer {token}", **HTML}
        yield lambda path: client.get(path, headers=headers)


@pytest.fixture(scope="module")
def example_page(example_services):
    """Get a page of the example site as its admin."""
    services, root_token = example_services
    with open_as(root_token, with_example_history(services)) as get:
        yield get
