"""Who keeps an answer, and how long."""

import pytest

JOBS = "/api/v1/jobs"


def test_an_answer_is_its_caller_s_alone(proxied):
    headers = proxied("vera").get(JOBS).headers
    assert headers["cache-control"] == "private, no-cache"
    assert headers["vary"] == "Authorization, X-Grafana-User, Cookie"


def test_who_has_the_answer_is_told_that_it_holds(proxied):
    vera = proxied("vera")
    tag = vera.get(JOBS).headers["etag"]
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = vera.get(JOBS, headers={"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert "content-length" not in again.headers
    assert vera.get(JOBS, headers={"If-None-Match": '"x"'}).status_code == 200
    assert vera.get(JOBS, params={"limit": 1}).headers["etag"] != tag
    # Nobody learns by a tag what others may see.
    other = proxied("alice").get(JOBS, headers={"If-None-Match": tag})
    assert other.status_code == 200


@pytest.mark.parametrize("url", ["/api/v1/tokens", "/api/v1/jobs?limit=x", "/api/v1/nothing"])
def test_tokens_and_troubles_are_kept_by_nobody(proxied, url):
    headers = proxied("vera").get(url).headers
    assert headers["cache-control"] == "no-store"
    assert "etag" not in headers
