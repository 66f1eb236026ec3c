"""A CA of a site, and the certificates and revocation lists it issues."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
_OIDS = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME}


def pem(certificate):
    """As text for a file."""
    return certificate.public_bytes(serialization.Encoding.PEM)


class Authority:
    """Issues what `now` (a datetime, UTC) makes current."""

    def __init__(self, name, now):
        self.now = now
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            self._builder(self.name, self.key, now - 9 * DAY, now + 9 * DAY)
            .add_extension(x509.BasicConstraints(True, None), True)
            .sign(self.key, hashes.SHA256())
        )

    def _builder(self, subject, key, since, until):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
        )

    def issue(self, *subject, days=5, usage=ExtendedKeyUsageOID.CLIENT_AUTH):
        """A client's certificate and its key: `issue(("CN", "vera"), ("OU", "viewer"))`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(_OIDS[kind], value) for kind, value in subject])
        made = self._builder(name, key, self.now - 8 * DAY, self.now + days * DAY)
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), False)
        return made.sign(self.key, hashes.SHA256()), key

    def revocation_list(self, *revoked, days=1, key=None):
        """The list (PEM) of these certificates, good for some days."""
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(self.now - 8 * DAY)
            .next_update(self.now + days * DAY)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
            entry = entry.revocation_date(self.now - DAY).build()
            made = made.add_revoked_certificate(entry)
        return pem(made.sign(key or self.key, hashes.SHA256()))


def write_pair(directory, name, certificate, key):
    """Certificate and key in one file, as `ssl` and curl read it."""
    path = directory / f"{name}.pem"
    path.touch(0o600)
    path.write_bytes(
        pem(certificate)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(path)
