"""Compressed size of the pages."""

import gzip

import pytest

MOST_BYTES = 60_000


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?limit=200", "/jobs/40120?cluster=alpha", "/usage", "/clusters", "/clusters/alpha",
        "/clusters/beta-gpu/nodes/b010", "/clusters/alpha/accounts/physics", "/admin",
        "/embed/jobs/40120?cluster=alpha", "/compare?job=alpha:40120&job=alpha:40133",
    ],
)  # fmt: skip
def test_a_compressed_page_is_small(example_page, path):
    answer = example_page(path)
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(answer.content, 5)) < MOST_BYTES
