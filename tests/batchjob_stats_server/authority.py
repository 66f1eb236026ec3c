"""The CA of a site, and the certificates and revocation lists that it issues."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
_OIDS = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME}


def pem(signed):
    """The certificate or revocation list in PEM form."""
    return signed.public_bytes(serialization.Encoding.PEM)


class Authority:
    """A CA whose certificates are valid around `now` (a datetime, UTC)."""

    def __init__(self, name, now):
        self.now = now
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            self._certificate_builder(self.name, self.key, now - 9 * DAY, now + 9 * DAY)
            .add_extension(x509.BasicConstraints(True, None), True)
            .sign(self.key, hashes.SHA256())
        )

    def _certificate_builder(self, subject, key, not_before, not_after):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before)
            .not_valid_after(not_after)
        )

    def issue(self, *subject, days=5, usage=ExtendedKeyUsageOID.CLIENT_AUTH):
        """A client's certificate and its key: `issue(("CN", "vera"), ("OU", "viewer"))`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(_OIDS[kind], value) for kind, value in subject])
        builder = self._certificate_builder(name, key, self.now - 8 * DAY, self.now + days * DAY)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        return builder.sign(self.key, hashes.SHA256()), key

    def revocation_list(self, *revoked, days=1, key=None):
        """The list of these certificates in PEM form, valid for some days."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(self.now - 8 * DAY)
            .next_update(self.now + days * DAY)
        )
        for certificate in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
            entry = entry.revocation_date(self.now - DAY).build()
            builder = builder.add_revoked_certificate(entry)
        return pem(builder.sign(key or self.key, hashes.SHA256()))


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
