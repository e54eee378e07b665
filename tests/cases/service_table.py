"""The packet table of Services: ``tests/cases/services/*.yaml`` as API objects and expected outcomes.

Every proxy data plane runs every case, through the tracer and as real packets. The world that the cases speak of is
fixed: see the head of ``policies.yaml``. A case may replace facts of the node by ``node``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.resolve import resolve, service_of
from podwire.proxy.servicemap import NodeFacts, ResolvedPort

NODE = NodeFacts(
    name="n1",
    zone="z1",
    addresses=("192.168.99.1", "fd99::1"),
    pod_cidrs=("10.180.0.0/16", "fd18::/16"),
    service_cidrs=("10.96.0.0/16", "fd96::/112"),
)
ADDRESSES: dict[str, tuple[str, str]] = {
    "one": ("10.180.0.1", "fd18::1"),
    "two": ("10.180.0.2", "fd18::2"),
    "far": ("10.180.1.3", "fd18:1::3"),
    "node": ("192.168.99.1", "fd99::1"),
    "outside": ("192.168.99.2", "fd99::2"),
}
_NODE_OF = {"one": "n1", "two": "n1", "far": "n2", "node": "n1"}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A deviation of a data plane, because Kubernetes' data plane deviates, too; with the reason.

    With ``seen`` alone only the source differs: the packet reaches the same endpoint as in other data planes.
    """

    refused: bool = False
    dropped: bool = False
    reaches: tuple[str, ...] = ()
    seen: str = ""
    because: str
    protocol: str = ""
    """The packets to which the deviation is limited; empty: all packets."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One connection attempt and its expected outcome."""

    source: str
    target: str
    protocol: str = "tcp"
    reaches: tuple[str, ...] = ()
    sticky: tuple[str, ...] = ()
    """The endpoints of which one answers, always the same one."""
    refused: bool = False
    dropped: bool = False
    untouched: bool = False
    """Whether the packet goes on untranslated to its destination."""
    seen: str = ""
    """client or node; empty: either."""
    bound: str = ""
    """The address that the source uses of those it has; empty: its usual one."""
    differs: dict[str, Difference] = {}
    """By the name of the data plane."""

    def by(self, plane: str) -> "Packet":
        """The expected outcome in a data plane."""
        other = self.differs.get(plane)
        if other is None:
            return self
        if other.reaches:
            return msgspec.structs.replace(self, refused=False, dropped=False, reaches=other.reaches, seen=other.seen)
        if other.seen:
            return msgspec.structs.replace(self, seen=other.seen)
        return Packet(
            source=self.source,
            target=self.target,
            protocol=self.protocol,
            refused=other.refused,
            dropped=other.dropped,
        )

    @property
    def address(self) -> str:
        """The target's address."""
        return self.target.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The target's port."""
        return int(self.target.rpartition(":")[2])

    @property
    def client(self) -> str:
        """The source's address in the family of the target; the loopback address for a target there."""
        if self.bound:
            return self.bound
        if self.address.startswith("127."):
            return "127.0.0.1"
        return ADDRESSES[self.source][":" in self.address]

    def __str__(self) -> str:
        return f"{self.source} to {self.target}/{self.protocol}"


class Case(msgspec.Struct, frozen=True):
    """A set of Services and packets."""

    name: str
    services: tuple[api.Service, ...]
    slices: tuple[api.EndpointSlice, ...]
    packets: tuple[Packet, ...]
    node: NodeFacts = NODE
    """The node of the case."""

    def by(self, plane: str) -> "Case":
        """The case as a data plane must behave."""
        return msgspec.structs.replace(self, packets=tuple(packet.by(plane) for packet in self.packets))

    def resolved(self, node: NodeFacts | None = None) -> dict[str, tuple[ResolvedPort, ...]]:
        """The resolved Services by key."""
        result: dict[str, tuple[ResolvedPort, ...]] = {}
        for service in self.services:
            key = f"default/{service.metadata.name}"
            result[key] = resolve(service, [s for s in self.slices if service_of(s) == key], node or self.node)
        return result


def read_cases(path: Path) -> tuple[Case, ...]:
    """The cases of one file in their order.

    What a data plane does otherwise with every packet that reaches an endpoint stands in ``differences.yaml`` there.
    """
    beside = yaml.load(path.with_name("differences.yaml").read_text(), yaml.CSafeLoader)
    everywhere = msgspec.convert(beside, dict[str, tuple[Difference, ...]])
    cases = (parse_case(document) for document in yaml.load(path.read_text(), yaml.CSafeLoader))
    return tuple(_with_differences(case, everywhere) for case in cases)


def _with_differences(case: Case, everywhere: Mapping[str, tuple[Difference, ...]]) -> Case:
    packets = tuple(_with_difference(packet, everywhere) for packet in case.packets)
    return msgspec.structs.replace(case, packets=packets)


def _with_difference(packet: Packet, everywhere: Mapping[str, tuple[Difference, ...]]) -> Packet:
    if not packet.reaches and not packet.sticky:
        return packet
    result = {
        plane: next(difference for difference in differences if difference.protocol in ("", packet.protocol))
        for plane, differences in everywhere.items()
    }
    return msgspec.structs.replace(packet, differs=result | packet.differs)


def parse_case(document: dict[str, Any]) -> Case:
    """One case, as it stands in a file."""
    services = tuple(_service(entry) for entry in document["services"])
    slices: list[api.EndpointSlice] = []
    for entry in document["services"]:
        endpoints = document["endpoints"].get(entry["name"])
        if endpoints is not None:
            slices += _slices(entry, endpoints)
    packets = msgspec.convert(document["packets"], tuple[Packet, ...])
    node = msgspec.convert(msgspec.to_builtins(NODE) | document.get("node", {}), NodeFacts)
    return Case(document["name"], services, tuple(slices), packets, node)


def _service(entry: dict[str, Any]) -> api.Service:
    addresses = tuple(entry[key] for key in ("clusterIP", "clusterIP6") if key in entry)
    affinity = entry.get("affinity", 0)
    spec = api.ServiceSpec(
        type=entry.get("type", "ClusterIP"),
        cluster_ip=addresses[0] if addresses else "",
        cluster_ips=addresses,
        external_ips=tuple(entry.get("externalIPs", ())),
        external_traffic_policy=entry.get("externalTrafficPolicy", ""),
        internal_traffic_policy=entry.get("internalTrafficPolicy"),
        load_balancer_source_ranges=tuple(entry.get("sourceRanges", ())),
        session_affinity="ClientIP" if affinity else "None",
        session_affinity_config=api.SessionAffinityConfig(client_ip=api.ClientIPConfig(timeout_seconds=affinity))
        if affinity
        else None,
        ports=tuple(_port(port) for port in entry["ports"]),
    )
    ingress = tuple(
        msgspec.convert({"ip": address} if isinstance(address, str) else address, api.LoadBalancerIngress)
        for address in entry.get("ingress", ())
    )
    return api.Service(
        metadata=ObjectMeta(name=entry["name"], namespace="default", labels=entry.get("labels", {})),
        spec=spec,
        status=api.ServiceStatus(load_balancer=api.LoadBalancerStatus(ingress=ingress)),
    )


def _port(port: dict[str, Any]) -> api.ServicePort:
    return api.ServicePort(
        name=port.get("name", ""),
        protocol=port.get("protocol", "TCP"),
        port=port["port"],
        node_port=port.get("nodePort", 0),
    )


def _slices(entry: dict[str, Any], endpoints: list[dict[str, Any]]) -> list[api.EndpointSlice]:
    """One slice of each family, or those written as ``{of: [endpoints], ports: {name: number}, labels: {}}``."""
    chunks = endpoints if endpoints and "of" in endpoints[0] else [{"of": endpoints}]
    return [_slice(entry, piece, (family, index)) for index, piece in enumerate(chunks) for family in (0, 1)]


def _slice(entry: dict[str, Any], piece: dict[str, Any], place: tuple[int, int]) -> api.EndpointSlice:
    family, index = place
    numbers = piece.get("ports", {})
    ports = tuple(
        api.EndpointPort(
            name=p.get("name", ""),
            protocol=p.get("protocol", "TCP"),
            port=numbers.get(p.get("name", ""), p.get("target", 8080)),
        )
        for p in entry["ports"]
    )
    name = f"{entry['name']}-{family}" + (f"-{index}" if index else "")
    labels = {SERVICE_NAME_LABEL: entry["name"]} | piece.get("labels", {})
    return api.EndpointSlice(
        metadata=ObjectMeta(name=name, namespace="default", labels=labels),
        address_type="IPv6" if family else "IPv4",
        endpoints=tuple(_endpoint(endpoint, family) for endpoint in piece["of"]),
        ports=ports,
    )


def _endpoint(entry: dict[str, Any], family: int) -> api.Endpoint:
    hints = None
    if "zones" in entry or "nodes" in entry:
        hints = api.EndpointHints(
            for_zones=tuple(api.HintTarget(name=zone) for zone in entry.get("zones", ())),
            for_nodes=tuple(api.HintTarget(name=node) for node in entry.get("nodes", ())),
        )
    return api.Endpoint(
        addresses=(ADDRESSES[entry["pod"]][family],),
        node_name=_NODE_OF[entry["pod"]],
        conditions=api.EndpointConditions(
            ready=entry.get("ready"), serving=entry.get("serving"), terminating=entry.get("terminating")
        ),
        hints=hints,
    )
