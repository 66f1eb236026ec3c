"""The chapters of help, which are made from docs, and the links to them."""

import re
from pathlib import Path

import pytest

from batchjob_stats_server.pages import help as help_pages
from tests.help_pages import CHAPTERS, REPOSITORY, TEMPLATES, anchor, help_page

LINK = re.compile(r'href="(/help[a-z/]*)#([a-z0-9-]+)"')
RULES = re.compile(r"^  - id: ([a-z-]+)$", re.MULTILINE)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapters_are_as_in_docs(chapter):
    text = (REPOSITORY / "docs" / f"{chapter}.md").read_text()
    assert (TEMPLATES / f"{chapter}.html").read_text() == help_page(text)


def test_anchors_are_those_of_the_documentation():
    assert anchor("What to request next time") == "what-to-request-next-time"
    assert anchor("`seff`, and more") == "seff-and-more"


def test_links_within_served_chapters_only():
    shown = help_page("[a](report.md#advice) [b](access.md) [c](#here) [d](user.md)\n")
    assert (
        '<a href="/help/report#advice">a</a> b <a href="#here">c</a> <a href="/help">d</a>' in shown
    )


def test_links_of_pages_lead_to_anchors(page):
    ids = {
        path: {each.get("id") for each in page("alice", path).iter() if each.get("id")}
        for path in CHAPTERS.values()
    }
    templates = Path(help_pages.__file__).with_name("templates").rglob("*.html")
    links = {link for path in templates for link in LINK.findall(path.read_text())}
    assert ("/help", "colours") in links
    assert [link for link in links if link[1] not in ids[link[0]]] == []
    rules = RULES.findall((REPOSITORY / "batchjob_stats_server/report/advice.yaml").read_text())
    assert len(rules) > 20
    assert set(rules) <= ids["/help/report"]


def test_unknown_chapter(page):
    page("alice", "/help/access", 422)
