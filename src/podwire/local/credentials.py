"""Certificates and kubeconfig files of a local cluster, made once and kept in its state folder.

``<state>/credentials/`` holds the authority, the API server's certificates, the token signing key, a serving
certificate per node, and a kubeconfig per user. ``front-proxy-client`` is the client certificate of the API server for
extension API servers; its authority signs no other certificate, and the authority's key is not stored. ``admin`` is for
people and has all rights. ``controller-manager``, ``scheduler``, each node's kubelet (``NODE``) and agent
(``agent-NODE``) have separate users with rights by roles. Components on the host use the loopback address, components
on nodes use the host's fabric address.
"""

import datetime
from pathlib import Path

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.certificates import KeyPair
from podwire.local.topology import FabricNode, Topology

_FOLDER = "credentials"
API_FABRIC_PORT = 6443
"""The port of the API server on the fabric."""


def folder(topology: Topology) -> Path:
    """The folder of the cluster's credentials."""
    return Path(topology.state) / _FOLDER


def kubeconfig_path(topology: Topology, user: str) -> Path:
    """The kubeconfig of ``admin``, ``controller-manager``, ``scheduler``, a node, or an agent (``agent-NODE``)."""
    return folder(topology) / f"{user}.kubeconfig"


def ensure(topology: Topology, port: int, service_addresses: tuple[str, ...], now: datetime.datetime) -> bool:
    """Makes missing certificates and kubeconfigs of the cluster; returns whether any was missing.

    ``port`` is the port of the API server on loopback.
    """
    directory = folder(topology)
    fresh = not (directory / "ca.key").exists()
    authority = _authority(directory, topology.name, now)
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
    if not (directory / "apiserver.key").exists():
        pair = certificates.issue(authority, "kube-apiserver", (), names, "server", now)
        certificates.write_pair(directory, "apiserver", pair)
        pair = certificates.issue(authority, "kube-apiserver-kubelet-client", ("system:masters",), (), "client", now)
        certificates.write_pair(directory, "kubelet-client", pair)
    if not (directory / "front-proxy-client.key").exists():
        proxy = certificates.make_authority(f"podwire {topology.name} front proxy", now)
        pair = certificates.issue(proxy, "front-proxy-client", (), (), "client", now)
        certificates.write_private(directory / "front-proxy-ca.crt", proxy.certificate)
        certificates.write_pair(directory, "front-proxy-client", pair)
    if not (directory / "tokens.key").exists():
        certificates.write_private(directory / "tokens.key", certificates.make_signing_key())
    loopback = f"https://127.0.0.1:{port}"
    _user(topology, authority, ("admin", "kubernetes-admin", "system:masters"), loopback, now)
    for name in ("controller-manager", "scheduler"):
        _user(topology, authority, (name, f"system:kube-{name}", ""), loopback, now)
    return fresh


def ensure_node(topology: Topology, node: FabricNode, now: datetime.datetime) -> None:
    """Makes a node's serving certificate and the kubeconfigs of its kubelet and agent, unless they exist."""
    authority = _authority(folder(topology), topology.name, now)
    if not (folder(topology) / f"{node.name}.key").exists():
        names = (node.name, str(node.address), str(node.address6))
        pair = certificates.issue(authority, f"system:node:{node.name}", ("system:nodes",), names, "both", now)
        certificates.write_pair(folder(topology), node.name, pair)
    server = f"https://{topology.host_address}:{API_FABRIC_PORT}"
    agent = (f"agent-{node.name}", f"podwire:agent:{node.name}", "podwire:agents")
    _user(topology, authority, agent, server, now)
    if not kubeconfig_path(topology, node.name).exists():
        _write_kubeconfig(topology, node.name, server, authority, _read_pair(folder(topology), node.name))


def _authority(directory: Path, name: str, now: datetime.datetime) -> KeyPair:
    if not (directory / "ca.key").exists():
        certificates.write_pair(directory, "ca", certificates.make_authority(f"podwire {name}", now))
    return _read_pair(directory, "ca")


def _read_pair(directory: Path, name: str) -> KeyPair:
    return KeyPair((directory / f"{name}.crt").read_bytes(), (directory / f"{name}.key").read_bytes())


def _user(
    topology: Topology, authority: KeyPair, user_certificate: tuple[str, str, str], server: str, now: datetime.datetime
) -> None:
    """``user_certificate`` is file name, user and group, if any; a kubeconfig with another server is written again."""
    file, user, group = user_certificate
    path = kubeconfig_path(topology, file)
    if path.exists() and server.encode() in path.read_bytes():
        return
    pair = certificates.issue(authority, user, (group,) if group else (), (), "client", now)
    _write_kubeconfig(topology, file, server, authority, pair)


def _write_kubeconfig(topology: Topology, file: str, server: str, authority: KeyPair, pair: KeyPair) -> None:
    cluster = topology.name if topology.name == "podwire" else f"podwire-{topology.name}"
    text = certificates.kubeconfig(cluster, server, authority.certificate, f"{cluster}-{file}", pair)
    certificates.write_private(kubeconfig_path(topology, file), text)
