"""How ``podwire why`` follows a packet over a bridge of pods: through the bridge table and through the IP rules.

A packet from a pod enters by the pod's port, where the bridge table checks its source address. To another port of the
bridge the packet is forwarded as a frame: through the chain ``forward`` of the same table, and through the IP hooks
only if ``br_netfilter`` is on. A packet to another destination, or to a Service first, is routed and passes the IP
hooks in any case. Pods of podwire's own bridge send packets to each other through the node, too.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from podwire.cluster.podbridge import is_pod_bridge
from podwire.errors import Unsupported
from podwire.kernel import bridges
from podwire.kernel.kinds import read_values
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.policy.bridges.layout import FAMILY, TABLE, BridgePort, table
from podwire.policy.foreign.kernel import KernelLinks
from podwire.policy.foreign.locate import PodLink, locate
from podwire.state.nft import Table
from podwire.trace import nft
from podwire.trace.packet import LocalAddresses, Outcome, Packet, Tracer, TraceStep

_TABLE_NAME = f"{FAMILY} {TABLE}"
_FORWARD = "forward"


class BridgePorts(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one node that are ports of bridges."""

    links: Mapping[str, PodLink]
    """Bridge and port by pod."""
    addresses: Mapping[str, PodLink]
    """Bridge and port by address of the pod."""
    unseen: Mapping[str, Mapping[str, str]]
    """By bridge: the families whose packets between its ports pass no IP hook, and why."""
    held: Table | None
    """The bridge table that the kernel holds."""
    routed: frozenset[str] = frozenset()
    """The bridges whose pods send packets to each other through the node's routing table."""


def read(netns: NetnsPath, pods: Mapping[str, Collection[str]]) -> BridgePorts | None:
    """The ports of ``pods`` (addresses by pod) and the bridge table; None: no pod is a port of a bridge.

    Raises: KernelError.
    """
    path = Path(netns) if netns is not None else None
    state, behind = KernelLinks(path).read()
    links = locate(pods, state, behind, {})
    links = {pod: link for pod, link in links.items() if link.port}
    if not links:
        return None
    with Netlink(netns) as netlink:
        unseen = {link.device: bridges.missing_hooks(netlink, link.device) for link in links.values()}
    return BridgePorts(
        links=links,
        addresses={address: link for pod, link in links.items() for address in pods[pod]},
        unseen=unseen,
        held=_held(netns),
        routed=frozenset(link.name for link in state.links if is_pod_bridge(link)),
    )


def _held(netns: NetnsPath) -> Table | None:
    try:
        tables = read_values(netns, {"nftables": ((FAMILY, TABLE),)})
    except Unsupported:
        return None  # without bridge tables in the kernel, no port is checked or isolated
    return next((table for table in tables if isinstance(table, Table)), None)


def planned(ports: BridgePorts, selected: Collection[str], pods: Mapping[str, Collection[str]]) -> Table | None:
    """The bridge table as planned for these pods; ``selected`` are the pods that a policy selects."""
    return table(
        BridgePort(
            name=link.port,
            addresses=tuple(pods[pod]),
            isolated=frozenset(ports.unseen[link.device]) if pod in selected else frozenset(),
        )
        for pod, link in sorted(ports.links.items(), key=lambda item: item[1].port)
    )


class BridgeTracer:
    """Traces packets through the bridge table and then through the tracer of the IP rules."""

    def __init__(self, plane: Tracer | None, own: Table | None, ports: BridgePorts, machine: LocalAddresses) -> None:
        """``plane`` traces the IP rules (None: there are none), ``own`` is the bridge table."""
        self._plane = plane
        self._frames = nft.Tracer([own] if own is not None else [], machine)
        self._ports = ports

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """The possible outcomes for a packet."""
        came = self._port(packet.source, packet.input)
        if came is None:
            yield from self._routed(packet)
            return
        goes = self._port(packet.destination, packet.output) if packet.sent_to in ("", packet.destination) else None
        frame = msgspec.structs.replace(packet, input=came.port, output=goes.port if goes is not None else "")
        first = self._frames.hook(frame, "prerouting")
        if first.verdict != "accept":
            yield first
            return
        if goes is None or goes.device != came.device or came.device in self._ports.routed:
            yield from (_with(first.steps, (), routed) for routed in self._routed(packet))
            return
        then = self._frames.hook(frame, _FORWARD)
        if then.verdict != "accept" or packet.family in self._ports.unseen[came.device]:
            yield _with(first.steps, (), then)
            return
        yield from (_with(first.steps, then.steps, routed) for routed in self._routed(packet))

    def _port(self, address: str, device: str) -> PodLink | None:
        """The port of the pod that has an address, if ``device`` is its bridge."""
        link = self._ports.addresses.get(address)
        return link if link is not None and link.device == device else None

    def _routed(self, packet: Packet) -> Iterator[Outcome]:
        if self._plane is None:
            return iter((Outcome(verdict="accept", packet=packet),))
        return self._plane.outcomes(packet)

    def about(self, step: TraceStep) -> str:
        """The reason for the rule of a step."""
        if step.table != _TABLE_NAME:
            return self._plane.about(step) if self._plane is not None else ""
        if step.chain == _FORWARD:
            return f"pods that policies select are isolated from the other pods of their bridge: {self._why()}"
        return "a pod's address may come only from the pod's own port of the bridge"

    def _why(self) -> str:
        reasons = (why for missing in self._ports.unseen.values() for why in missing.values())
        return " and ".join(dict.fromkeys(reasons)) or "now the IP hooks see packets between the ports"


def _with(first: tuple[TraceStep, ...], then: tuple[TraceStep, ...], outcome: Outcome) -> Outcome:
    """An outcome with the steps of the bridge table added: at each hook, bridge rules come before IP rules."""
    early = tuple(step for step in outcome.steps if step.hook == "prerouting")
    late = outcome.steps[len(early) :]
    middle = then if late or outcome.verdict == "accept" else ()
    return msgspec.structs.replace(outcome, steps=(*first, *early, *middle, *late))
