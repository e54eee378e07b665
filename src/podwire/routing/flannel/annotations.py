"""The annotations by which Flannel's nodes know each other (pure).

flanneld (with ``--kube-subnet-mgr``) writes to its Node the backend, the backend's data and the address of the outer
packets, and reads those of all other Nodes. A Node with podwire's own facts is a node of podwire, whatever else it
carries; one with Flannel's alone is a node of flanneld. Source: Flannel's documentation, Kubernetes subnet manager.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

import msgspec

from podwire.state.address import mac_text

PREFIX = "flannel.alpha.coreos.com/"
MANAGED = f"{PREFIX}kube-subnet-manager"
BACKEND_TYPE = f"{PREFIX}backend-type"
BACKEND_DATA = {4: f"{PREFIX}backend-data", 6: f"{PREFIX}backend-v6-data"}
PUBLIC_IP = {4: f"{PREFIX}public-ip", 6: f"{PREFIX}public-ipv6"}
_OVERWRITE = {4: f"{PREFIX}public-ip-overwrite", 6: f"{PREFIX}public-ipv6-overwrite"}


TYPES = {"vxlan": "vxlan", "host-gw": "hostgw", "ipip": "ipip"}
"""The backends that podwire has too and whose packets are the same, by Flannel's names (``Backend.Type``)."""


class FlannelNode(NamedTuple):
    """What a node of flanneld announces.

    ``backend`` is podwire's name of its backend, or Flannel's own for one that podwire lacks; ``addresses`` are those
    of outer packets, IPv4 first; ``details`` are what podwire's nodes announce of the same backend
    (``nodes.RoutingFacts``), with ``mac6`` for outer packets over IPv6 where both families have data.
    """

    backend: str
    addresses: tuple[str, ...]
    details: Mapping[str, Any]


def read(annotations: Mapping[str, str]) -> FlannelNode | None:
    """What the annotations of a Node say; None where flanneld has not written them."""
    kind = annotations.get(BACKEND_TYPE, "")
    if not kind or annotations.get(MANAGED) != "true":
        return None
    addresses = [_outer_address(annotations, version) for version in (4, 6)]
    four, six = _details(annotations, 4), _details(annotations, 6)
    details = four | {"mac6": six["mac"]} if four and six else four or six
    return FlannelNode(TYPES.get(kind, kind), tuple(filter(None, addresses)), details)


def _outer_address(annotations: Mapping[str, str], version: int) -> str:
    for key in (_OVERWRITE[version], PUBLIC_IP[version]):
        try:
            address = ip_address(annotations.get(key, ""))
        except ValueError:
            continue
        if address.version == version and not address.is_unspecified:
            return str(address)
    return ""


def _details(annotations: Mapping[str, str], version: int) -> dict[str, Any]:
    """The hardware address and the network identifier in the data of vxlan; empty for other data."""
    try:
        data = msgspec.json.decode(annotations.get(BACKEND_DATA[version], "") or "{}", type=dict[str, Any])
        mac = mac_text(str(data.get("VtepMAC") or ""))
    except (msgspec.MsgspecError, ValueError):
        return {}
    if not mac:
        return {}
    return {"mac": mac} | ({"vni": data["VNI"]} if isinstance(data.get("VNI"), int) else {})


class Vtep(NamedTuple):
    """The device of vxlan: its hardware address and network identifier."""

    mac: str
    vni: int


def write(kind: str, vteps: Mapping[int, Vtep | None], public: Mapping[int, str]) -> dict[str, str]:
    """The annotations of a node of podwire, for nodes of flanneld.

    ``kind`` is Flannel's type of the backend; ``vteps`` are the devices by the IP version of their outer packets, None
    for a backend without one; ``public`` the node's addresses by IP version.
    """
    written = {MANAGED: "true", BACKEND_TYPE: kind}
    for version, vtep in vteps.items():
        data = {"VNI": vtep.vni, "VtepMAC": vtep.mac} if vtep is not None else None
        written[BACKEND_DATA[version]] = msgspec.json.encode(data).decode()
    return written | {PUBLIC_IP[family]: address for family, address in public.items()}
