"""The serving certificate: an authority and a certificate of our own, which live no longer than this process.

The authority's key never leaves memory; its certificate goes to the APIService (`registration`), which is the only one
who has to trust it. The serving certificate is renewed long before it expires, under the same authority.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=30)
RENEW_SECONDS = 10 * 86_400.0
_CLOCKS_DIFFER = timedelta(hours=1)


class Authority:
    """A certificate authority for one server, reachable as `hosts`. `clock` is the API server's, which judges it."""

    def __init__(self, hosts: tuple[str, ...], clock: Callable[[], datetime]) -> None:
        self._hosts = hosts
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "octavo metrics API")])
        public = self._key.public_key()
        self._certificate = (
            _builder(name, name, public, self._clock(), AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def serve_with(self, context: ssl.SSLContext) -> None:
        """Make a new serving certificate and make `context` show it to all who connect from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._hosts[0][:64])])
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(name, self._certificate.subject, key.public_key(), self._clock(), SERVING_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in self._hosts]), critical=False)
            .add_extension(own, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.TemporaryDirectory() as folder:  # 0700; the library reads keys from files only
            path = Path(folder) / "serving.pem"
            path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
            context.load_cert_chain(path)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + life)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates, key_cert_sign=sign_certificates, crl_sign=sign_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
