"""What cannot be answered, as a page."""

import gzip

from tests.batchjob_stats_server.pages.conftest import HTML, parsed, words


def test_a_page_that_is_not_there_keeps_the_navigation(page):
    for path in ("/nowhere", "/jobs/nothing", "/clusters/none"):
        document = page("alice", path, 404)
        assert document.find(".//nav") is not None
        assert document.find(".//form[@role='search']") is not None
        assert "alice" in words(document.find(".//header"))


def test_a_wrong_value_is_told_in_words_and_can_be_left_out(page):
    document = page("alice", "/jobs", 422, state="DONE", usr="bob", limit="many")
    told = [words(each) for each in document.findall(".//ul[@class='wrong']/li")]
    assert len(told) == 3
    assert "usr: unknown parameter" in told
    assert any(each.startswith("limit: expected a whole number") for each in told)
    hrefs = [each.get("href") for each in document.findall(".//main//a")]
    assert hrefs == ["/jobs", "/"]
    assert document.find(".//nav") is not None


def test_nobody_is_known_where_nobody_signed_in(client):
    answer = client.get("/nowhere", headers=HTML)
    assert answer.status_code == 404
    assert parsed(answer).find(".//nav") is None


def test_pages_and_answers_are_compressed(proxied):
    """A page of jobs, and a page of rows of the API."""
    for path in ("/jobs", "/api/v1/jobs?limit=100"):
        answer = proxied("root").get(path, headers={**HTML, "Accept-Encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        packed = int(answer.headers["content-length"]) if "content-length" in answer.headers else 0
        assert packed < len(answer.content) / 3


def test_no_page_of_the_example_takes_more_than_60_kb_compressed(example):
    for path in ("/jobs?limit=200", "/jobs/40120?cluster=alpha", "/clusters/alpha", "/usage"):
        assert len(gzip.compress(example(path).content, 5)) < 60_000, path
