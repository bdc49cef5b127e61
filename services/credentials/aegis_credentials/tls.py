"""The certificate authority of a site and the certificate of its servers: the gRPC service, the bus, its routes. Owns `<site>/tls/`.

Agents get `ca.pem` as a file, never by trust on first use. The server certificate is made anew when its names change or its end is near. Servers of
one bus also show it to each other, so it is good for both ends of a connection. The authority's own key lies beside that folder (`<site>/ca.key`): a
server is given the folder, whole, and sees what is made anew in it.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aegis_credentials.keys import write_private

CA_DAYS = 3650
SERVER_DAYS = 365
RENEW_DAYS = 30
BACKDATE = datetime.timedelta(hours=1)
"""Certificates begin an hour ago: clocks of nodes differ."""


HOSTS = ("127.0.0.1", "localhost")
_BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def ensure_tls(folder: Path, hosts: tuple[str, ...] | None, now: datetime.datetime, *, server_days: float = SERVER_DAYS) -> None:
    """Make `ca.pem`, `server.pem`, `server.key` in `folder` and `ca.key` beside it, or leave what is good. Repeatable.

    `hosts`: names and addresses; None = those of the certificate that is there, HOSTS where there is none.
    Raises: FileNotFoundError when a certificate is due and `ca.key` was taken away.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / "ca.key").exists():  # where earlier versions had it
        (folder / "ca.key").rename(_ca_key(folder))
    if hosts is None:
        hosts = _hosts(folder) or HOSTS
    if not (folder / "ca.pem").exists():
        _make_ca(folder, now)
    if not _server_is_good(folder, hosts, now):
        _make_server(folder, hosts, now, server_days)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Aegis"), x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _ca_key(folder: Path) -> Path:
    return folder.parent / "ca.key"


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _make_ca(folder: Path, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Aegis site CA")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(_ca_key(folder), _key_pem(key))
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _names(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _hosts(folder: Path) -> tuple[str, ...]:
    """What the server certificate is for, () when there is none."""
    if not (folder / "server.pem").exists():
        return ()
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


def _make_server(folder: Path, hosts: tuple[str, ...], now: datetime.datetime, days: float) -> None:
    ca_key = load_pem_private_key(_ca_key(folder).read_bytes(), password=None)
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise TypeError("ca.key: an EC key expected")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name("Aegis credentials"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + datetime.timedelta(days=days)) - BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_BOTH_ENDS), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(folder / "server.key", _key_pem(key))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def _server_is_good(folder: Path, hosts: tuple[str, ...], now: datetime.datetime) -> bool:
    if not (folder / "server.pem").exists() or not (folder / "server.key").exists():
        return False
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return (
        set(names) == set(_names(hosts))
        and set(usage) == set(_BOTH_ENDS)
        and certificate.not_valid_after_utc - now > datetime.timedelta(days=RENEW_DAYS)
    )
