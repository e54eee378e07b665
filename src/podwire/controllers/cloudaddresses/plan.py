"""Which interfaces and addresses the instances of nodes need for their pods (pure).

A node needs an address for each of its pods, ``warm`` further ones so that a new pod does not wait for the cloud, and
``minimum`` in all. Addresses are added to interfaces that have room; when all are full, another interface is made. One
plan has one step for each interface: an interface is made, in the next plan attached, and then gets addresses. So after
a kill between two calls, the next plan goes on with what the cloud shows.

Addresses are not taken away while the node lives: an agent could be giving one to a pod at this moment. What is left of
instances that are no nodes any more is detached and deleted.

Cost: linear in nodes and interfaces; a second plan for a cloud that has everything is empty.
Source: the warm targets of amazon-vpc-cni-k8s (``WARM_IP_TARGET``, ``MINIMUM_IP_TARGET``).
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_network

import msgspec

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.controllers.cloudaddresses.provider import (
    AddressChange,
    AddressState,
    AssignAddresses,
    AttachInterface,
    CreateInterface,
    DeleteInterface,
    DetachInterface,
    Instance,
    MarkedInterface,
)


class AddressTargets(msgspec.Struct, frozen=True, gc=False):
    """Numbers of addresses: without a pod, and in all."""

    warm: int = 5
    minimum: int = 0


class NodeDemand(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node, its instance (empty when ``problem`` says why it is not known), and the number of its pods."""

    name: str
    instance: str = ""
    pods: int = 0
    problem: str = ""


class AddressPlan(msgspec.Struct, frozen=True):
    """The changes, each with its node (empty for none), the nodes that cannot have enough, and what each node has."""

    changes: tuple[tuple[AddressChange, str], ...] = ()
    problems: Mapping[str, str] = {}
    have: Mapping[str, NodeInterfaces] = {}

    def __str__(self) -> str:
        lines = [f"{change}\n" for change, _ in self.changes]
        return "".join([*lines, *(f"# {node}: {problem}\n" for node, problem in sorted(self.problems.items()))])


def plan(demands: Iterable[NodeDemand], state: AddressState, targets: AddressTargets) -> AddressPlan:
    """The changes for all nodes, in the order of their names."""
    changes: list[tuple[AddressChange, str]] = []
    problems: dict[str, str] = {}
    have: dict[str, NodeInterfaces] = {}
    nodes = sorted(demands, key=lambda demand: demand.name)
    for demand in nodes:
        instance = state.instances.get(demand.instance)
        if instance is None:
            problems[demand.name] = demand.problem or f"instance {demand.instance} does not exist"
            continue
        own = sorted((i for i in state.interfaces if i.instance == instance.id), key=lambda i: (i.index, i.id))
        have[demand.name] = _node_interfaces(own, state.networks)
        needed = max(demand.pods + targets.warm, targets.minimum)
        steps, missing = _steps(instance, own, needed)
        changes += [(step, demand.name) for step in steps]
        if missing and demand.pods > sum(len(interface.pods) for interface in own):
            problems[demand.name] = (
                f"instance {instance.id} has no room for {missing} of {needed} addresses: its type has"
                f" {instance.interfaces_max} interfaces with {instance.addresses_max} addresses"
            )
    if all(demand.instance for demand in nodes):
        changes += [(step, "") for step in _leftovers(state, {demand.instance for demand in nodes})]
    return AddressPlan(tuple(changes), problems, have)


def _steps(instance: Instance, own: list[MarkedInterface], needed: int) -> tuple[list[AddressChange], int]:
    """The next steps of an instance, and the number of addresses for which it has no room."""
    missing = needed - sum(len(interface.pods) for interface in own)
    steps: list[AddressChange] = []
    room = instance.addresses_max - 1
    used = {0, *instance.indexes}
    for interface in own:
        if not interface.index and len(used) >= instance.interfaces_max:
            steps.append(DeleteInterface(interface.id))
        elif not interface.index:
            index = next(number for number in range(1, len(used) + 1) if number not in used)
            used.add(index)
            steps.append(AttachInterface(interface.id, instance.id, index))
        elif missing > 0 and len(interface.pods) < room:
            count = min(missing, room - len(interface.pods))
            steps.append(AssignAddresses(interface.id, count))
            missing -= count
    waiting = sum(room - len(interface.pods) for interface in own if not interface.index)
    if missing > waiting and room > 0 and len(used) < instance.interfaces_max:
        steps.append(CreateInterface(instance.id, instance.subnet, instance.groups))
        return steps, 0
    return steps, max(0, missing - waiting)


def _leftovers(state: AddressState, instances: set[str]) -> Iterable[AddressChange]:
    for interface in sorted(state.interfaces, key=lambda interface: interface.id):
        if interface.instance not in instances:
            yield DetachInterface(interface.id) if interface.index else DeleteInterface(interface.id)


def _node_interfaces(own: Iterable[MarkedInterface], networks: tuple[str, ...]) -> NodeInterfaces:
    """What the agent of a node must know: the attached interfaces with addresses for pods."""
    return NodeInterfaces(
        networks=networks,
        interfaces=tuple(
            PodInterface(
                index=interface.index,
                mac=interface.mac,
                address=interface.address,
                gateway=interface.gateway,
                pods=tuple(str(ip_network(text)) for text in sorted(interface.pods)),
            )
            for interface in own
            if interface.index and interface.pods
        ),
    )
