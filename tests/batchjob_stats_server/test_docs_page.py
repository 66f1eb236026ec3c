"""The documentation page needs no files from other servers."""

import re


def test_docs_page_and_its_files_are_served(client):
    page = client.get("/docs")
    assert (
        "unsafe-inline"
        not in page.headers["content-security-policy"].split("script-src")[1].split(";")[0]
    )
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(names) == 3
    for name in names:
        assert "//" not in name
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert len(answer.content) > 100
    document = re.search(r'data-document="([^"]+)"', page.text)[1]
    assert client.get(f"/{document}").json()["info"]["title"] == "batchjob"


def test_other_files_are_not_served(client):
    for name in ("x.js", "..%2F__init__.py", "redoc.standalone.js"):
        assert client.get(f"/docs/{name}").status_code == 404


def test_openapi_document_declares_security_schemes(client):
    document = client.get("/api/v1/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert {name: each["type"] for name, each in schemes.items()} == {
        "token": "http", "certificate": "mutualTLS",
    }  # fmt: skip
    for path, operations in document["paths"].items():
        for operation in operations.values():
            required_schemes = [name for each in operation.get("security", ()) for name in each]
            assert sorted(required_schemes) == (
                sorted(schemes) if path.startswith("/api/v1") else []
            ), path
