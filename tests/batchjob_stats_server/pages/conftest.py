"""Pages as a browser gets them."""

import contextlib

import html5lib
import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import ReportOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import measured

HTML = {"Accept": "text/html,application/xhtml+xml"}


def parsed(answer):
    """The document of a page; whatever is not valid HTML fails."""
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


def drawings(document, name):
    """The SVG elements of a class."""
    return [
        each
        for each in document.iter("{http://www.w3.org/2000/svg}svg")
        if each.get("class") == name
    ]


def words(element):
    """The text of an element, spaces folded; as people read it, without what is hidden."""
    return " ".join("".join(element.itertext()).replace("\u202f", " ").split())


@pytest.fixture
def page(proxied):
    """Get a page as somebody: `page("alice", "/jobs", state="FAILED")` is its document."""

    def get(who, path, status=200, /, **params):
        answer = proxied(who).get(path, params=params, headers=HTML)
        assert answer.status_code == status, answer.text
        return parsed(answer)

    return get


@pytest.fixture(scope="module")
def example_services(tmp_path_factory):
    """Those of the example site, and its admin's token."""
    path = tmp_path_factory.mktemp("example") / "jobs.db"
    _, root = example_site.make(path)
    web = ServerWebOptions(allowed_host=("testserver",))
    report = ReportOptions(
        help_url="https://hpc.example.org/advice#{rule}", mail_address="{user}@example.org"
    )
    return build(ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web, report=report)), root


@contextlib.contextmanager
def asked_as(token, services):
    """Get a page as somebody who has a token."""
    with TestClient(app.make(services)) as client:
        headers = {"Authorization": f"Bearer {token}", **HTML}
        yield lambda there: client.get(there, headers=headers)


@pytest.fixture(scope="module")
def example(example_services):
    """Get a page of the example site as its admin."""
    made, root = example_services
    with asked_as(root, measured(made)) as get:
        yield get
