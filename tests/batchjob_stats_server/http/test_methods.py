"""Methods: HEAD of health, the Allow header; and what stands twice in a request."""

import pytest


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_health_answers_head(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.text) == (200, "")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/tokens", "GET, POST"),
        ("POST", "/-/healthy", "GET, HEAD"),
        ("GET", "/api/v1/tokens/1", "DELETE"),
        ("DELETE", "/tokens", "GET, POST"),
    ],
)
def test_allow_names_every_method_of_a_path(client, method, path, allowed):
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("request_of", "name"),
    [
        (lambda client: client.post("/sign-in", content="token=bj_a&token=bj_b"), "token"),
        (lambda client: client.post("/sign-in", content="next=/a&token=x&next=/b"), "next"),
        (lambda client: client.get("/api/v1/jobs?limit=1&limit=2"), "limit"),
    ],
)  # fmt: skip
def test_field_that_stands_twice_is_refused(client, request_of, name):
    answer = request_of(client)
    assert answer.status_code == 422
    assert f"{name}: must not be repeated" in answer.text


def test_name_that_stands_twice_in_a_json_body_is_refused(client, token_headers):
    headers = {**token_headers("alice"), "Content-Type": "application/json"}
    body = '{"label": "x", "lifetime_seconds": 60, "lifetime_seconds": 86400}'
    answer = client.post("/api/v1/tokens", content=body, headers=headers)
    assert (answer.status_code, "'lifetime_seconds' twice" in answer.text) == (422, True)


def test_two_session_cookies_are_refused(client):
    for headers in (
        [("Cookie", "batchjob-80=bw_a; batchjob-80=bw_b")],
        [("Cookie", "batchjob-80=bw_a"), ("Cookie", "x=y;batchjob-80 =bw_b")],
    ):
        for answer in (client.get("/api/v1/me", headers=headers),
                       client.post("/sign-out", headers=headers)):  # fmt: skip
            assert (answer.status_code, "expected one cookie" in answer.text) == (400, True)
