"""An exporter as sites protect it, and a scraper with access to it."""

import base64
import contextlib
import http.client
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import bcrypt
import trustme

from tests.e2e import exporter
from tests.helpers.waiting import scaled
from tests.private_keys import write_key

SCRAPE_TIMEOUT = 10.0  # Prometheus' own
TRANSPORTS = ("plain", "tls", "mtls")
FLAGS = ("--collector.disable-defaults", "--collector.node", "--collector.jobs")


class Scraped(NamedTuple):
    """An exporter, and the credentials of its scraper."""

    target: exporter.Target
    context: ssl.SSLContext | None
    headers: dict[str, str]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the exporter."""
        host, _, port = self.target.address.rpartition(":")
        return host, int(port)

    def scrape(self, source: str = "127.0.0.1") -> tuple[int, float]:
        """Status and seconds of one scrape over a connection of its own, from an address."""
        begin = time.monotonic()
        options = {"timeout": scaled(SCRAPE_TIMEOUT), "source_address": (source, 0)}
        if self.context is None:
            client = http.client.HTTPConnection(*self.address, **options)
        else:
            client = http.client.HTTPSConnection(*self.address, context=self.context, **options)
        with contextlib.closing(client):
            client.request("GET", "/metrics", headers=self.headers)
            answer = client.getresponse()
            body = answer.read()
        assert answer.status != 200 or b"batchjob_node_cpus" in body
        return answer.status, time.monotonic() - begin


def write_certificates(folder: Path) -> tuple[ssl.SSLContext, trustme.CA]:
    """Write certificates of a server; returns the context and the CA of its clients."""
    authority, clients = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    write_key(server, folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
    clients.cert_pem.write_to_path(folder / "clients.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context, clients


@contextlib.contextmanager
def scraped(
    transport: str, folder: Path, *flags: str, inside: Sequence[str] = ()
) -> Iterator[Scraped]:
    """Run an exporter without protection, with TLS and a password, or with client certificates.

    `inside` is a prefix of its command line.
    """
    context, headers, lines = None, {}, []
    if transport != "plain":
        context, clients = write_certificates(folder)
        lines = ["tls_server_config:", "  cert_file: cert.pem", "  key_file: key.pem"]
    if transport == "mtls":
        clients.issue_cert("prometheus.example.org").configure_cert(context)
        lines += ["  client_ca_file: clients.pem"]
        lines += ["  client_auth_type: RequireAndVerifyClientCert"]
    if transport == "tls":
        headers["Authorization"] = "Basic " + base64.b64encode(b"prom:sesame").decode()
        password = bcrypt.hashpw(b"sesame", bcrypt.gensalt(10)).decode()
        lines += ["basic_auth_users:", f"  prom: {password}"]
    (folder / "web.yml").write_text("\n".join(lines))
    flags = (*FLAGS, *flags, f"--web.config.file={folder}/web.yml")
    # Only our server tells clients of plain HTTP that it expects TLS.
    ready = exporter.Target.listens if inside else exporter.Target.answers
    with exporter.running(*flags, inside=inside, ready=ready) as target:
        yield Scraped(target, context, headers)
