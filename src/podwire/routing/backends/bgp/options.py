"""The section ``routing.bgp``: the cluster's number, sessions between nodes, route reflectors, external peers."""

from collections.abc import Mapping
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

import msgspec

from podwire.bgp.configuration import BGP_PORT, LogLevel
from podwire.bgp.fields import AS_MAX, check_password, community
from podwire.errors import ConfigError
from podwire.routing.backend import BackendOptions, check_range
from podwire.routing.nodes import LocalNode, Peer

RESTART_MAX_S = 4095
"""12 bits (RFC 4724 section 3)."""
_HIDDEN = "(hidden)"


class BgpSectionPart(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The base of the structs of this section: keys in camelCase, unknown keys are errors."""


class ExternalPeer(BgpSectionPart, frozen=True):
    """A router outside of the cluster, and the nodes that have a session with it."""

    address: str
    as_number: int
    port: int = BGP_PORT
    password: str = ""
    nodes: tuple[str, ...] = ()
    """Names of the nodes; empty for all."""
    accept: tuple[str, ...] = ()
    """Only these networks, and networks inside them, are accepted; empty accepts all."""
    communities: tuple[str, ...] = ()
    """Added to sent routes: ``64512:100``, or a large community ``64512:1:100``."""
    prepend: int = 0
    """How often the own number is added to the path of sent routes."""
    bfd: bool = False


class Reflectors(BgpSectionPart, frozen=True):
    """The route reflectors: they pass on the routes of all nodes, and other nodes have sessions only with them."""

    nodes: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    """Nodes with all of these labels are reflectors too; empty selects none."""
    cluster_id: str = msgspec.field(default="224.0.0.1", name="clusterID")

    def has(self, node: LocalNode | Peer) -> bool:
        """Whether a node is a reflector, by its name or its labels."""
        labelled = bool(self.labels) and all(node.labels.get(key) == value for key, value in self.labels.items())
        return node.name in self.nodes or labelled


class BgpSection(BgpSectionPart, frozen=True):
    """The fields below ``routing.bgp``."""

    as_number: int = 64512
    listen_port: int = BGP_PORT
    mesh: bool = True
    """Whether nodes that are no reflectors have sessions with each other."""
    password: str = ""
    """Of the sessions between nodes; empty for none."""
    bfd: bool = False
    """In the sessions between nodes."""
    add_paths: bool = False
    restart_time_s: int = 120
    log_level: LogLevel = "info"
    reflectors: Reflectors = Reflectors()
    peers: tuple[ExternalPeer, ...] = ()


class BgpOptions(BackendOptions, frozen=True):
    """The section ``routing.bgp``; to peers of the same subnet, plain routes lead packets outside, too."""

    routes_outside = True

    bgp: BgpSection = BgpSection()

    def check(self, source: str) -> None:
        """Checks numbers, addresses, networks and communities, and that no two peers are the same.

        Raises: ConfigError naming the field.
        """
        section, path = self.bgp, "routing.bgp"
        check_range(source, f"{path}.asNumber", section.as_number, 1, AS_MAX)
        check_range(source, f"{path}.listenPort", section.listen_port, 1, 65535)
        check_range(source, f"{path}.restartTimeS", section.restart_time_s, 1, RESTART_MAX_S)
        check_password(source, f"{path}.password", section.password)
        try:
            IPv4Address(section.reflectors.cluster_id)
        except ValueError as problem:
            raise ConfigError(
                source, f"{path}.reflectors.clusterID", f"{problem}; expected an IPv4 address"
            ) from problem
        indexes: dict[object, int] = {}
        for index, peer in enumerate(section.peers):
            _check_peer(source, f"{path}.peers[{index}]", peer)
            address = ip_address(peer.address)
            if address in indexes:
                other = f"{path}.peers[{indexes[address]}]"
                raise ConfigError(source, f"{path}.peers[{index}].address", f"{address} is also the address of {other}")
            indexes[address] = index

    def shown(self) -> Mapping[str, Any]:
        """The options without their passwords."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        for holder in (document["bgp"], *document["bgp"]["peers"]):
            holder["password"] = _HIDDEN if holder["password"] else ""
        return document


def _check_peer(source: str, path: str, peer: ExternalPeer) -> None:
    try:
        ip_address(peer.address)
    except ValueError as problem:
        raise ConfigError(source, f"{path}.address", f"{problem}") from problem
    check_range(source, f"{path}.asNumber", peer.as_number, 1, AS_MAX)
    check_range(source, f"{path}.port", peer.port, 1, 65535)
    check_range(source, f"{path}.prepend", peer.prepend, 0, 20)
    check_password(source, f"{path}.password", peer.password)
    for index, network in enumerate(peer.accept):
        try:
            ip_network(network)
        except ValueError as problem:
            raise ConfigError(source, f"{path}.accept[{index}]", str(problem)) from problem
    for index, text in enumerate(peer.communities):
        try:
            community(text)
        except ValueError as problem:
            raise ConfigError(source, f"{path}.communities[{index}]", str(problem)) from problem
