"""Certificates and kubeconfigs of a real control plane: users and groups as kubeadm names them."""

import datetime
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from tests.real.layout import CONTROL_ADDRESS, DOMAIN, SERVICE_ADDRESS, RealLayout

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.certificates import KeyPair

USERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("kubernetes-admin", ("system:masters",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
}
"""By the name of the kubeconfig: user and groups."""
_API_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}")


def public_key(private: bytes) -> bytes:
    """The public key: the API server reads none out of a private key in PKCS 8."""
    key = load_pem_private_key(private, None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def write(layout: RealLayout, now: datetime.datetime) -> None:
    """Writes all certificates, keys and kubeconfigs."""
    layout.keys.mkdir(parents=True, exist_ok=True)
    authority = certificates.make_authority("kubernetes", now)
    front = certificates.make_authority("front-proxy", now)
    for name, pair in (("ca", authority), ("front-proxy-ca", front)):
        certificates.write_pair(layout.keys, name, pair)
    signing = certificates.make_signing_key()
    certificates.write_private(layout.keys / "service-accounts.key", signing)
    (layout.keys / "service-accounts.pub").write_bytes(public_key(signing))

    def issue(file: str, user: str, groups: tuple[str, ...] = (), by: KeyPair = authority) -> KeyPair:
        pair = certificates.issue(by, user, groups, (), "client", now)
        certificates.write_pair(layout.keys, file, pair)
        return pair

    def serve(file: str, user: str, *names: str) -> None:
        certificates.write_pair(layout.keys, file, certificates.issue(authority, user, (), names, "server", now))

    # A member of etcd is also a client of the other members, with the same certificate.
    certificates.write_pair(
        layout.keys, "etcd", certificates.issue(authority, "etcd", (), ("localhost", "127.0.0.1"), "both", now)
    )
    serve("apiserver", "kube-apiserver", *_API_NAMES, "localhost", CONTROL_ADDRESS, SERVICE_ADDRESS, "127.0.0.1")
    issue("apiserver-etcd-client", "kube-apiserver-etcd-client")
    issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
    issue("front-proxy-client", "front-proxy-client", (), front)
    users = dict(USERS)
    for node in layout.names:
        users[node] = (f"system:node:{node}", ("system:nodes",))
        serve(f"kubelet-{node}", f"system:node:{node}", node, layout.node_address(node))
    for file, (user, groups) in users.items():
        text = certificates.kubeconfig("real", layout.server, authority.certificate, user, issue(file, user, groups))
        certificates.write_private(Path(layout.kubeconfig(file)), text)
