"""One certificate authority for a cluster, and its certificates; every key is new and is deleted with the cluster."""

import base64
import datetime
import ipaddress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)


class Authority:
    """Signs certificates and writes them as `<name>.crt` and `<name>.key` (PEM, readable by the owner alone)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("octavo-cluster-ca", None)
        basics = x509.BasicConstraints(ca=True, path_length=None)
        certificate = _builder(self._name, self._name, self._key).add_extension(basics, critical=True)
        self._write("ca", certificate.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, name: str, common_name: str, *, group: str | None = None, hosts: tuple[str, ...] = ()) -> None:
        """Sign a certificate for client and server use; `hosts` are its DNS names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _builder(_name(common_name, group), self._name, key).add_extension(usage, critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def key_pair(self, name: str) -> None:
        """Write a bare key pair as `<name>.key` and `<name>.pub` (for service account tokens)."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._private(name, key)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / f"{name}.pub").write_bytes(public)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._private(name, key)

    def _private(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )


def write_kubeconfig(path: Path, *, server: str, pki: Path, name: str = "admin") -> None:
    """Write a kubeconfig (certificates embedded) that reaches `server` as the client `name` of `pki`."""

    def embed(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "octavo", "cluster": {"server": server, "certificate-authority-data": embed("ca.crt")}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": embed(f"{name}.crt"),
                    "client-key-data": embed(f"{name}.key"),
                },
            }
        ],
        "contexts": [{"name": "octavo", "context": {"cluster": "octavo", "user": name}}],
        "current-context": "octavo",
    }
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))


def _name(common_name: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if group:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )
