"""Certificates and kubeconfig files of a local cluster, made once and kept in its state folder.

``<state>/credentials/`` holds the authority, the API server's certificates, the token signing key, a serving
certificate per node, and a kubeconfig per user: ``admin`` for people (loopback address), ``controller`` and one per
node for components (the host's fabric address, or loopback for what runs on the host).
"""

import datetime
from pathlib import Path

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.certificates import KeyPair
from podwire.local.topology import FabricNode, Topology

_FOLDER = "credentials"
API_FABRIC_PORT = 6443
"""Where the API server listens on the fabric."""


def folder(topology: Topology) -> Path:
    """Where everything is."""
    return Path(topology.state) / _FOLDER


def kubeconfig_path(topology: Topology, user: str) -> Path:
    """The kubeconfig of ``admin``, ``controller`` or a node."""
    return folder(topology) / f"{user}.kubeconfig"


def ensure(topology: Topology, port: int, service_addresses: tuple[str, ...], now: datetime.datetime) -> bool:
    """Makes what every cluster needs; returns whether anything was missing. ``port`` is the API's on loopback."""
    place = folder(topology)
    fresh = not (place / "ca.key").exists()
    authority = _authority(place, topology.name, now)
    names = (
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "127.0.0.1",
        "::1",
        str(topology.host_address),
        str(topology.host_address6),
        *service_addresses,
    )
    if not (place / "apiserver.key").exists():
        pair = certificates.issue(authority, "kube-apiserver", (), names, "server", now)
        certificates.write_pair(place, "apiserver", pair)
        pair = certificates.issue(authority, "kube-apiserver-kubelet-client", ("system:masters",), (), "client", now)
        certificates.write_pair(place, "kubelet-client", pair)
    if not (place / "tokens.key").exists():
        certificates.write_private(place / "tokens.key", certificates.make_signing_key())
    loopback = f"https://127.0.0.1:{port}"
    _user(topology, authority, ("admin", "kubernetes-admin", "system:masters"), loopback, now)
    _user(topology, authority, ("controller", "system:kube-controller-manager", "system:masters"), loopback, now)
    return fresh


def ensure_node(topology: Topology, place: FabricNode, now: datetime.datetime) -> None:
    """Makes one node's serving certificate and kubeconfig where they are missing."""
    authority = _authority(folder(topology), topology.name, now)
    if not (folder(topology) / f"{place.name}.key").exists():
        names = (place.name, str(place.address), str(place.address6))
        pair = certificates.issue(authority, f"system:node:{place.name}", ("system:nodes",), names, "both", now)
        certificates.write_pair(folder(topology), place.name, pair)
    if not kubeconfig_path(topology, place.name).exists():
        server = f"https://{topology.host_address}:{API_FABRIC_PORT}"
        _write_kubeconfig(topology, place.name, server, authority, _read_pair(folder(topology), place.name))


def _authority(place: Path, name: str, now: datetime.datetime) -> KeyPair:
    if not (place / "ca.key").exists():
        certificates.write_pair(place, "ca", certificates.make_authority(f"podwire {name}", now))
    return _read_pair(place, "ca")


def _read_pair(place: Path, name: str) -> KeyPair:
    return KeyPair((place / f"{name}.crt").read_bytes(), (place / f"{name}.key").read_bytes())


def _user(
    topology: Topology, authority: KeyPair, who: tuple[str, str, str], server: str, now: datetime.datetime
) -> None:
    """``who`` is file name, user and group; a kubeconfig with another server is written again."""
    file, user, group = who
    path = kubeconfig_path(topology, file)
    if path.exists() and server.encode() in path.read_bytes():
        return
    pair = certificates.issue(authority, user, (group,), (), "client", now)
    _write_kubeconfig(topology, file, server, authority, pair)


def _write_kubeconfig(topology: Topology, file: str, server: str, authority: KeyPair, pair: KeyPair) -> None:
    cluster = topology.name if topology.name == "podwire" else f"podwire-{topology.name}"
    text = certificates.kubeconfig(cluster, server, authority.certificate, f"{cluster}-{file}", pair)
    certificates.write_private(kubeconfig_path(topology, file), text)
