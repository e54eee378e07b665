"""The rules for Services of one node: read from its kernel when possible, and planned from the objects."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from podwire.cluster.names import NODE_PROXY
from podwire.cni import ports
from podwire.dataplane.tracing import trace_held
from podwire.errors import KernelError, ProtocolError
from podwire.http.fetch import read_page
from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.kinds import read_values
from podwire.model.node import Node
from podwire.proxy.dataplane import addresses_of_node
from podwire.proxy.servicemap import ServiceMap
from podwire.proxy.tracing import open_tracing
from podwire.routing.tables import MASQUERADE
from podwire.state import chain_marks
from podwire.state.iptables import Ruleset
from podwire.state.network import NetworkState
from podwire.state.nft import Table
from podwire.trace.iptables import Tracer as IptablesTracer
from podwire.trace.nft import Tracer as NftTracer
from podwire.trace.packet import LocalAddresses, Outcome, Packet, Tracer, TraceStep
from podwire.why.nodes import NodeAccess
from podwire.why.services.hop import ServiceRules

_ANSWER_S = 0.5


def read_rules(
    access: NodeAccess, node: Node, network: NetworkState | None, services: ServiceMap, mode: str
) -> ServiceRules:
    """The rules of a node; ``network`` None: its kernel is not read. ``mode`` overrides the mode that the node
    announces.

    Raises: KernelError.
    """
    facts = access.facts(node)
    own = facts.addresses if network is None else addresses_of_node(network)
    machine = LocalAddresses(addresses=frozenset(own))
    if "proxy" not in access.parts:
        other = f"the agent of {node.metadata.name} leaves Services to another proxy (no part proxy)"
        note = f"{other}; the answer for Services is made from the objects alone"
        return ServiceRules(mode="", facts=facts, machine=machine, notes=(note,))
    mode = mode or node.metadata.annotations.get(NODE_PROXY, "")
    if not mode and network is not None and access.metrics is not None:
        mode = ask_mode(access.netns, access.metrics)
    mode = mode or access.service_mode
    tracing = open_tracing(mode)
    planned: Tracer | None = None
    held: Tracer | None = None
    if tracing is not None:
        planned = tracing.planned(services, facts, machine)
        held = trace_held(tracing, access.netns, machine) if network is not None else None
    return ServiceRules(
        mode=mode,
        facts=facts,
        machine=machine,
        planned=planned,
        held=held,
        other_nat=read_other_nat(access.netns, machine) if network is not None else None,
    )


def read_flows(netns_path: Path | None, packet: Packet) -> tuple[str, ...]:
    """The UDP flows that the kernel of a namespace tracks from the packet's source to its destination.

    Raises: KernelError.
    """
    if packet.protocol != "udp":
        return ()
    with Conntrack(netns_path) as conntrack:
        flows = conntrack.flows((packet.source,), "UDP")
    ends = packet.source, packet.destination, packet.destination_port
    own = (f for f in flows if (f.original.src, f.original.dst, f.original.dport) == ends)
    return tuple(f"from port {f.original.sport} to {f.backend[0]} port {f.backend[1]}" for f in own)


def ask_mode(netns_path: Path | None, metrics: tuple[str, int]) -> str:
    """The mode in force by the proxy's own page, for agents that may not write it to their Node; empty: unknown.

    ``metrics`` is the proxy's metrics address.
    """
    address, port = metrics
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared, not bound
    try:
        with netns.inside(netns_path):
            connection = socket.create_connection((loopback, port), _ANSWER_S)
        with connection:
            return "".join(read_page(connection, "/proxyMode")).strip()
    except (OSError, ProtocolError, UnicodeDecodeError):
        return ""


def read_other_nat(netns_path: Path | None, machine: LocalAddresses) -> Tracer | None:
    """The rules for masquerade by routing and for hostPorts, in both forms of masquerade (nftables and iptables).

    None when they cannot be read.
    """
    marks = {"nftables": (("inet", MASQUERADE), ("inet", ports.TABLE)), "iptables": chain_marks.MASQUERADE}
    try:
        values = read_values(netns_path, marks)
    except KernelError:
        return None
    tables = NftTracer([value for value in values if isinstance(value, Table)], machine)
    rulesets = [value for value in values if isinstance(value, Ruleset)]
    return _BothForms(tables, IptablesTracer(rulesets, machine)) if rulesets else tables


class _BothForms:
    """Tables of nftables, and masquerade by iptables."""

    def __init__(self, tables: Tracer, masquerade: Tracer) -> None:
        self._tables = tables
        self._masquerade = masquerade

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """The outcomes by the tables; the source is masqueraded when one of both forms masquerades it."""
        hidden = next(iter(self._masquerade.outcomes(packet))).masqueraded
        for outcome in self._tables.outcomes(packet):
            yield msgspec.structs.replace(outcome, masqueraded=outcome.masqueraded or hidden)

    def about(self, step: TraceStep) -> str:
        """The text of a step through the tables."""
        return self._tables.about(step)
