"""What ServiceL2Status and ServiceBGPStatus say about one node (pure).

Each object is about one Service on one node. Its name is derived from both, so that two agents never write one object,
and an agent that is restarted finds its own again.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Protocol

from podwire.loadbalancer.bgproutes import BgpAnnouncement
from podwire.loadbalancer.election import L2Choice
from podwire.loadbalancer.ranges import Address
from podwire.model.metallb import InterfaceInfo, ServiceAnnouncement

NODE_LABEL = "metallb.io/node"
SERVICE_LABEL = "metallb.io/service-name"
NAMESPACE_LABEL = "metallb.io/service-namespace"
_LABEL_MAX = 63


class OnDevice(Protocol):
    """An address on a device of the node."""

    @property
    def link(self) -> str: ...


def answered(
    node: str, held: Mapping[Address, Collection[OnDevice]], choices: Mapping[Address, L2Choice]
) -> dict[str, ServiceAnnouncement]:
    """By Service, the devices on which a node has addresses of it."""
    devices: dict[str, set[str]] = {}
    for address, leased in held.items():
        choice = choices.get(address)
        for key in choice.services if choice is not None else ():
            devices.setdefault(key, set()).update(entry.link for entry in leased)
    return {
        key: _announcement(node, key, interfaces=tuple(InterfaceInfo(name=name) for name in sorted(names)))
        for key, names in devices.items()
    }


def advertised(node: str, announcements: Collection[BgpAnnouncement]) -> dict[str, ServiceAnnouncement]:
    """By Service, the BGPPeers to which a node announces addresses of it."""
    peers: dict[str, set[str]] = {}
    for entry in announcements:
        for key in entry.services:
            peers.setdefault(key, set()).update(entry.peers)
    return {key: _announcement(node, key, peers=tuple(sorted(names))) for key, names in peers.items()}


def status_name(status: ServiceAnnouncement) -> str:
    """The name of the object with a status: ``l2-`` or ``bgp-`` and a number."""
    text = f"{status.node}/{status.service_namespace}/{status.service_name}"
    kind = "l2" if status.interfaces else "bgp"
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def status_labels(status: ServiceAnnouncement) -> dict[str, str]:
    """The labels of the object with a status."""
    return {
        NODE_LABEL: node_label(status.node),
        SERVICE_LABEL: status.service_name,
        NAMESPACE_LABEL: status.service_namespace,
    }


def node_label(node: str) -> str:
    """The value of the label of a node; a number where the name is too long for a label."""
    return node if len(node) <= _LABEL_MAX else hashlib.sha256(node.encode()).hexdigest()[:_LABEL_MAX]


def _announcement(
    node: str, key: str, *, interfaces: tuple[InterfaceInfo, ...] = (), peers: tuple[str, ...] = ()
) -> ServiceAnnouncement:
    namespace, _, name = key.partition("/")
    return ServiceAnnouncement(
        node=node, service_name=name, service_namespace=namespace, interfaces=interfaces, peers=peers
    )
