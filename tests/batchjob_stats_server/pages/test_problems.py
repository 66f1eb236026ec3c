"""Error pages, and compression of pages."""

import gzip

from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page


def test_not_found_page_keeps_navigation(page):
    for path in ("/nowhere", "/jobs/nothing", "/clusters/none"):
        document = page("alice", path, 404)
        assert document.find(".//nav") is not None
        assert document.find(".//form[@role='search']") is not None
        assert "alice" in element_text(document.find(".//header"))


def test_invalid_parameters_are_explained_with_link_without_them(page):
    document = page("alice", "/jobs", 422, state="DONE", usr="bob", limit="many")
    messages = [element_text(each) for each in document.findall(".//ul[@class='wrong']/li")]
    assert len(messages) == 3
    assert "usr: unknown parameter" in messages
    assert "limit: expected a whole number, got 'many'" in messages
    assert any(each.startswith("state: expected 'PENDING'") for each in messages)
    hrefs = [each.get("href") for each in document.findall(".//main//a")]
    assert hrefs == ["/jobs", "/"]
    assert document.find(".//nav") is not None


def test_wrong_numbers_and_words_are_explained_without_jargon(proxy_client):
    wrong = {"limit": "0", "started": "perhaps", "started_from": "tomorrow"}
    answer = proxy_client("alice").get("/api/v1/jobs", params=wrong)
    assert answer.json()["detail"] == (
        "started_from: expected epoch seconds, or a time such as 2026-04-04T22:30Z, "
        "got 'tomorrow'; started: expected true or false, got 'perhaps'; "
        "limit: expected at least 1, got '0'"
    )


def test_error_page_without_sign_in_has_no_navigation(client):
    answer = client.get("/nowhere", headers=HTML)
    assert answer.status_code == 404
    assert parse_page(answer).find(".//nav") is None


def test_pages_and_api_responses_are_compressed(proxy_client):
    """A page of jobs, and a page of rows of the API."""
    for path in ("/jobs", "/api/v1/jobs?limit=100"):
        answer = proxy_client("root").get(path, headers={**HTML, "Accept-Encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        compressed_bytes = (
            int(answer.headers["content-length"]) if "content-length" in answer.headers else 0
        )
        assert compressed_bytes < len(answer.content) / 3


def test_example_pages_are_below_60_kb_compressed(example_page):
    for path in ("/jobs?limit=200", "/jobs/40120?cluster=alpha", "/clusters/alpha", "/usage"):
        assert len(gzip.compress(example_page(path).content, 5)) < 60_000, path
