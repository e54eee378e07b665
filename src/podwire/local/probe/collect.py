"""Collects the inputs of a probe from the API and from the folders of the local cluster."""

import asyncio
from ipaddress import ip_address
from pathlib import Path

import msgspec

from podwire.cluster.networkconfig import NETWORK_CONFIG, SYSTEM_NAMESPACE
from podwire.cluster.world import World
from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.embedded.kubelet.podrecord import load_record
from podwire.errors import NotFound, ProtocolError
from podwire.kube.client import Client
from podwire.kube.optional import list_if_served
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    CONFIGMAPS,
    ENDPOINTSLICES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICES,
)
from podwire.local import credentials
from podwire.local.probe.execute import ConnectionProber, Lookup
from podwire.local.probe.plan import DNS_SERVICE, HOST, PacketSource, ProbeInputs
from podwire.local.topology import Topology
from podwire.model.meta import key_of
from podwire.policy.evaluate import EvaluationOptions
from podwire.runtime.clock import Clock


async def collect_inputs(client: Client, topology: Topology) -> ProbeInputs:
    """Collects the inputs of a plan; all lists are requested at the same time."""
    pods, services, nodes, slices, world, rules = await asyncio.gather(
        client.list(PODS),
        client.list(SERVICES),
        client.list(NODES),
        client.list(ENDPOINTSLICES),
        _policies(client),
        _rules(client),
    )
    return ProbeInputs(
        pods=tuple(pods.items),
        services=tuple(sorted(services.items, key=lambda s: (s.metadata.namespace, s.metadata.name))),
        node_addresses=tuple((n.metadata.name, n.internal_ips[0]) for n in nodes.items if n.internal_ips),
        slices=tuple(slices.items),
        world=msgspec.structs.replace(world, pods=tuple(pods.items), nodes=tuple(nodes.items)),
        rules=rules,
        host_address=str(topology.host_address),
        host_port=credentials.API_FABRIC_PORT,
    )


async def _policies(client: Client) -> World:
    """The objects of policies; empty for kinds that the API does not serve."""
    namespaces, policies, cluster_policies = await asyncio.gather(
        client.list(NAMESPACES), client.list(NETWORKPOLICIES), list_if_served(client, CLUSTERNETWORKPOLICIES)
    )
    return World(namespaces=tuple(namespaces.items), policies=tuple(policies.items), cluster_policies=cluster_policies)


async def _rules(client: Client) -> EvaluationOptions:
    """The cluster's settings for cases that the NetworkPolicy API does not define."""
    try:
        config = await client.get(CONFIGMAPS, NETWORK_CONFIG, SYSTEM_NAMESPACE)
    except NotFound:
        return EvaluationOptions()
    return EvaluationOptions(own_node_egress=(config.get("data") or {}).get("policy.ownNodeEgress") != "false")


def pod_namespaces(topology: Topology) -> dict[str, Path]:
    """The network namespace of every pod by uid, as the nodes' kubelets recorded it."""
    namespaces: dict[str, Path] = {}
    for folder in Path(topology.state).glob("nodes/*/kubelet/pods/*"):
        record = load_record(folder)
        if record is not None and record.netns:
            namespaces[record.uid] = Path(record.netns)
    return namespaces


async def prober(
    topology: Topology, client: Client, clock: Clock, timeout_s: float = 1.0
) -> tuple[ConnectionProber, ProbeInputs]:
    """A prober for the pods of a local cluster, and the inputs of its plan."""
    inputs = await collect_inputs(client, topology)
    return prober_of(topology, inputs, clock, timeout_s), inputs


def prober_of(topology: Topology, inputs: ProbeInputs, clock: Clock, timeout_s: float = 1.0) -> ConnectionProber:
    """A prober for the sources of a local cluster."""
    server = next((s.spec.cluster_ip for s in inputs.services if key_of(s.metadata) == DNS_SERVICE), "")
    namespaces = pod_namespaces(topology)

    def namespace_of(source: PacketSource) -> Path | None:
        if source.name == HOST:
            return None
        if source.namespace:
            return Path(topology.netns(source.namespace))
        if source.host_network:
            return Path(topology.netns(source.node))
        return namespaces.get(source.pod_uid) or Path(topology.netns(f"pod-{source.pod_uid}"))

    return ConnectionProber(namespace_of, Lookup(server=server, query=_query, addresses=_addresses), clock, timeout_s)


def _query(number: int, name: str, v6: bool) -> bytes:
    kind = wire.AAAA if v6 else wire.A
    return wire.encode(wire.DnsMessage(id=number, flags=wire.RD, name=encode_name(name), qtype=kind))


def _addresses(data: bytes) -> tuple[str, ...]:
    try:
        message = wire.parse_message(data)
    except ProtocolError:
        return ()
    records = (r for r in message.answer if r.type in (wire.A, wire.AAAA))
    return tuple(str(ip_address(record.head + record.tail)) for record in records)
