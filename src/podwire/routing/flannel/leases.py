"""The subnets that nodes of flanneld without Kubernetes keep in etcd, as Nodes (pure).

Below the prefix (``/coreos.com/network``), the key ``subnets/10.5.34.0-24`` is the subnet of one node; of both families
``subnets/10.5.34.0-24&fd00:0:0:22::-64``. Its value is JSON with the address of outer packets, the backend and its
data, and it expires after a day unless flanneld renews it. etcd answers requests in JSON, with keys and values in
base64.

A lease becomes a Node with the annotations that flanneld writes where it uses Kubernetes
(:mod:`podwire.routing.flannel.annotations`), so everything else is as with such a node. A Node of the API with
podwire's own facts takes precedence over the lease that flanneld left on the same node.

Sources: Flannel's documentation, reservations and configuration; etcd's documentation, gRPC gateway.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.flannel import annotations as flannel

LEASE_S = 24 * 3600
"""Flannel's own time until a lease expires."""
_KEY = re.compile(r"(\d+\.\d+\.\d+\.\d+)-(\d+)(?:&([0-9a-f:]+)-(\d+))?")


class SubnetLease(msgspec.Struct, frozen=True, kw_only=True):
    """The subnets of a machine, IPv4 first, the addresses of its outer packets, its backend and the data as JSON."""

    subnets: tuple[str, ...]
    addresses: tuple[str, ...]
    kind: str
    data: Mapping[int, str] = {}

    @property
    def name(self) -> str:
        """The name of the Node for a machine that the API has no Node of."""
        return f"flanneld-{self.subnets[0].replace('/', '-')}"

    def annotations(self) -> dict[str, str]:
        """What flanneld would write to the Node."""
        written = {flannel.MANAGED: "true", flannel.BACKEND_TYPE: self.kind}
        written |= {flannel.PUBLIC_IP[ip_address(address).version]: address for address in self.addresses}
        return written | {flannel.BACKEND_DATA[version]: text for version, text in self.data.items()}


class _LeaseValue(msgspec.Struct):
    """The value of a key."""

    public_ip: str = msgspec.field(name="PublicIP", default="")
    public_ipv6: str | None = msgspec.field(name="PublicIPv6", default=None)
    kind: str = msgspec.field(name="BackendType", default="")
    data: msgspec.Raw = msgspec.field(name="BackendData", default=msgspec.Raw(b"null"))
    data6: msgspec.Raw = msgspec.field(name="BackendV6Data", default=msgspec.Raw(b"null"))


class _KeyValue(msgspec.Struct):
    key: str
    value: str = ""


class _RangeAnswer(msgspec.Struct):
    kvs: tuple[_KeyValue, ...] = ()


def subnets_folder(prefix: str) -> str:
    """The beginning of the keys of all leases."""
    return f"{prefix.rstrip('/')}/subnets/"


def encode_range(prefix: str) -> dict[str, Any]:
    """The request for all leases (``/v3/kv/range``)."""
    folder = subnets_folder(prefix).encode()
    end = folder[:-1] + bytes((folder[-1] + 1,))
    return {"key": _base64(folder), "range_end": _base64(end)}


def parse_range(answer: bytes, prefix: str) -> tuple[tuple[SubnetLease, ...], tuple[str, ...]]:
    """The leases in etcd's answer, and what is wrong with those that are left out.

    Raises: ValueError when the answer is not one of etcd.
    """
    try:
        pairs = msgspec.json.decode(answer, type=_RangeAnswer).kvs
    except msgspec.MsgspecError as failure:
        raise ValueError(f"no answer of etcd: {failure}") from failure
    leases: list[SubnetLease] = []
    problems: list[str] = []
    for pair in pairs:
        key = base64.b64decode(pair.key).decode(errors="replace")
        try:
            leases.append(_lease(key.removeprefix(subnets_folder(prefix)), base64.b64decode(pair.value)))
        except (ValueError, msgspec.MsgspecError) as failure:
            problems.append(f"{key}: {failure}")
    return tuple(leases), tuple(problems)


def _lease(key: str, value: bytes) -> SubnetLease:
    matched = _KEY.fullmatch(key)
    if matched is None:
        raise ValueError("expected a key such as 10.5.34.0-24")
    four, length, six, length6 = matched.groups()
    subnets = [str(ip_network(f"{four}/{length}"))] if four != "0.0.0.0" else []
    subnets += [str(ip_network(f"{six}/{length6}"))] if six else []
    read = msgspec.json.decode(value, type=_LeaseValue)
    addresses = tuple(str(ip_address(text)) for text in (read.public_ip, read.public_ipv6) if text)
    if not read.kind or not addresses:
        raise ValueError("expected BackendType and PublicIP")
    data = {4: bytes(read.data).decode(), 6: bytes(read.data6).decode()}
    return SubnetLease(
        subnets=tuple(subnets),
        addresses=tuple(address for address in addresses if not ip_address(address).is_unspecified),
        kind=read.kind,
        data={version: text for version, text in data.items() if text != "null"},
    )


def own_lease(annotations: Mapping[str, str], pod_cidrs: Sequence[str]) -> SubnetLease | None:
    """The lease of a node of podwire with these annotations of Flannel; None without annotations or an IPv4 subnet."""
    four = next((cidr for cidr in pod_cidrs if ":" not in cidr), "")
    if flannel.BACKEND_TYPE not in annotations or not four:
        return None
    data = {version: annotations.get(key, "null") for version, key in flannel.BACKEND_DATA.items()}
    return SubnetLease(
        subnets=(four, *[cidr for cidr in pod_cidrs if ":" in cidr][:1]),
        addresses=tuple(text for key in flannel.PUBLIC_IP.values() if (text := annotations.get(key))),
        kind=annotations[flannel.BACKEND_TYPE],
        data={version: text for version, text in data.items() if text != "null"},
    )


def encode_put(lease: SubnetLease, prefix: str, number: str) -> dict[str, Any]:
    """The request that writes a lease (``/v3/kv/put``); ``number`` is that of etcd's lease, after which it expires."""
    names = [subnet.replace("/", "-") for subnet in lease.subnets]
    value = {"PublicIP": "", "BackendType": lease.kind}
    for address in lease.addresses:
        value["PublicIPv6" if ":" in address else "PublicIP"] = address
    fields = {4: "BackendData", 6: "BackendV6Data"}
    raw = {fields[version]: msgspec.Raw(text.encode()) for version, text in lease.data.items()}
    return {
        "key": _base64(f"{subnets_folder(prefix)}{'&'.join(names)}".encode()),
        "value": _base64(msgspec.json.encode(value | raw)),
        "lease": number,
    }


def with_leases(nodes: Mapping[str, Node], leases: Sequence[SubnetLease], own: str) -> dict[str, Node]:
    """The Nodes of the API, and those of the leases; ``own`` is the name of this node, whose Node stays.

    A Node of the API without podwire's facts gets the annotations and subnets of the lease with its address.
    """
    merged = dict(nodes)
    owners = {address: node for node in nodes.values() for address in node.internal_ips}
    podwires = [node for node in nodes.values() if _is_podwires(node) or node.metadata.name == own]
    changed = {cidr for node in podwires for cidr in node.pod_cidrs}
    for lease in leases:
        node = next((owners[address] for address in lease.addresses if address in owners), None)
        if node is None:
            if not changed & set(lease.subnets):
                merged[lease.name] = _node(lease)
        elif node.metadata.name != own and not _is_podwires(node):
            annotations = {**node.metadata.annotations, **lease.annotations()}
            merged[node.metadata.name] = replace(
                node,
                metadata=replace(node.metadata, annotations=annotations),
                spec=replace(node.spec, pod_cidr=lease.subnets[0], pod_cidrs=lease.subnets),
            )
    return merged


def _is_podwires(node: Node) -> bool:
    return NODE_ROUTING_FACTS in node.metadata.annotations


def _node(lease: SubnetLease) -> Node:
    return Node(
        metadata=ObjectMeta(name=lease.name, annotations=lease.annotations()),
        spec=NodeSpec(pod_cidr=lease.subnets[0], pod_cidrs=lease.subnets),
        status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=text) for text in lease.addresses)),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
