"""Methods: HEAD of health, and the Allow header of a path with several routes."""

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
