"""The OpenAPI document says what the answers are."""

import pytest


def test_document_lists_the_keys_and_formats_of_rows(client):
    document = client.get("/api/v1/openapi.json").json()
    jobs = document["paths"]["/api/v1/jobs"]["get"]
    (fields,) = [each for each in jobs["parameters"] if each["name"] == "fields"]
    assert {"jobid", "user", "state"} <= set(fields["schema"]["items"]["enum"])
    assert (fields["style"], fields["explode"]) == ("form", False)
    assert {"application/json", "application/x-ndjson", "text/csv"} <= jobs["responses"]["200"][
        "content"
    ].keys()


def test_document_is_valid_by_an_independent_validator(client):
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(client.get("/api/v1/openapi.json").json())
