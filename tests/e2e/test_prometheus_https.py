"""Prometheus scrapes over TLS, with a client certificate and a password."""

import bcrypt
import pytest
import trustme

from batchjob_exporter.options import parse_settings
from batchjob_exporter.service import ExporterService
from tests.e2e import prometheus
from tests.helpers.waiting import until
from tests.private_keys import write_key

pytestmark = pytest.mark.e2e


@pytest.fixture
def certificate_directory(tmp_path):
    """Directory with the certificates and keys of a CA, the exporter and Prometheus."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, san in (("node", "127.0.0.1"), ("prometheus", "prometheus.example.org")):
        issued = ca.issue_cert(san)
        write_key(issued, tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


@pytest.fixture
def exporter_address(certificate_directory):
    """Address of an exporter that requires a client certificate and a password."""
    password_hash = bcrypt.hashpw(b"sesame", bcrypt.gensalt(8)).decode()
    (certificate_directory / "web.yml").write_text(
        f"""
tls_server_config:
  cert_file: node.pem
  key_file: node.key
  client_ca_file: ca.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus.example.org]
basic_auth_users:
  prometheus: {password_hash}
"""
    )
    service = ExporterService(
        parse_settings(
            [
                "--web.listen-address=127.0.0.1:0",
                f"--web.config.file={certificate_directory}/web.yml",
                "--collector.disable-defaults",
                "--collector.node",
            ]
        )
    )
    service.start()
    yield service.addresses[0]
    service.stop()


@pytest.mark.parametrize(
    ("certificate", "password", "up"),
    [("prometheus", "sesame", 1), ("prometheus", "wrong", 0), ("node", "sesame", 0)],
)
def test_scrape_requires_client_certificate_and_password(
    certificate_directory, exporter_address, certificate, password, up
):
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    with prometheus.server(
        [exporter_address],
        scrape_interval="1s",
        scheme="https",
        tls_config={
            "ca_file": f"{certificate_directory}/ca.pem",
            "cert_file": f"{certificate_directory}/{certificate}.pem",
            "key_file": f"{certificate_directory}/{certificate}.key",
        },
        basic_auth={"username": "prometheus", "password": password},
    ) as server:
        until(lambda: server.query("up"), "first scrape")
        assert [sample.value for sample in server.query("up")] == [up]
        assert len(server.query("batchjob_node_cpus")) == up
