"""Which interfaces and addresses the instances of nodes need for their pods (pure).

A node needs an address for each of its pods, ``warm`` further ones so that a new pod does not wait for the cloud, and
``minimum`` in all. Addresses are added to interfaces that have room; when all are full, another interface is made. One
plan has one step for each interface: an interface is made, in the next plan attached, and then gets addresses. So after
a kill between two calls, the next plan goes on with what the cloud shows.

With IPv6 a node needs as many addresses of each family. With prefixes an interface gets whole ranges in place of single
addresses: a pod then waits for the cloud less often, and an interface has room for more pods.

Addresses are not taken away while the node lives: an agent could be giving one to a pod at this moment. What is left of
instances that are no nodes any more is detached and deleted.

Cost: linear in nodes and interfaces; a second plan for a cloud that has everything is empty.
Source: the warm targets of amazon-vpc-cni-k8s (``WARM_IP_TARGET``, ``MINIMUM_IP_TARGET``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

import msgspec

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.controllers.cloudaddresses.provider import (
    PREFIX_LENGTHS,
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
    """Numbers of addresses, without a pod and in all; whether pods have IPv6 too; whether interfaces get prefixes."""

    warm: int = 5
    minimum: int = 0
    ipv6: bool = False
    prefixes: bool = False


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
        have[demand.name] = _node_interfaces(own, state.networks, ipv6=targets.ipv6)
        needed = max(demand.pods + targets.warm, targets.minimum)
        families = [_Family(version, instance, own, needed, targets) for version in ((4, 6) if targets.ipv6 else (4,))]
        changes += [(step, demand.name) for step in _steps(instance, own, families)]
        if lacking := [family.problem(instance) for family in families if family.lacks(demand.pods)]:
            problems[demand.name] = "; ".join(lacking)
    if all(demand.instance for demand in nodes):
        changes += [(step, "") for step in _leftovers(state, {demand.instance for demand in nodes})]
    return AddressPlan(tuple(changes), problems, have)


class _Family:
    """What a node has and still needs of the IP version ``version``, while a plan goes through its interfaces."""

    def __init__(
        self, version: int, instance: Instance, own: Iterable[MarkedInterface], needed: int, targets: AddressTargets
    ) -> None:
        self.version, self._prefixes, self._needed = version, targets.prefixes, needed
        self._room = instance.addresses6_max if version == 6 else instance.addresses_max - 1
        self._size = 1 << ((32 if version == 4 else 128) - PREFIX_LENGTHS[version]) if targets.prefixes else 1
        self.has = sum(ip_network(text).num_addresses for interface in own for text in self._entries(interface))
        self.missing = needed - self.has

    @property
    def fits(self) -> bool:
        """Whether another interface would help."""
        return self.missing > 0 and self._room > 0

    def lacks(self, pods: int) -> bool:
        """Whether so many pods cannot all have an address, or no pod can ever have one."""
        return self.missing > 0 and (self.has < pods or self._room <= 0)

    def assign(self, interface: MarkedInterface) -> Iterator[AssignAddresses]:
        """The step that fills an attached interface; none when nothing is missing or it is full."""
        count = min(-(-self.missing // self._size), self._free(interface))
        if count > 0:
            self.missing -= count * self._size
            yield AssignAddresses(interface.id, count, self.version, self._prefixes)

    def expect(self, interface: MarkedInterface) -> None:
        """Counts the room of an interface that is not attached yet."""
        self.missing -= max(0, self._free(interface)) * self._size

    def _free(self, interface: MarkedInterface) -> int:
        return self._room - len(self._entries(interface))

    def _entries(self, interface: MarkedInterface) -> tuple[str, ...]:
        return interface.pods6 if self.version == 6 else interface.pods

    def problem(self, instance: Instance) -> str:
        """Why the instance has no room for what is missing."""
        kind, most = ("IPv6 addresses", instance.addresses6_max) if self.version == 6 else ("addresses", self._room + 1)
        if self._room <= 0:
            return f"instance {instance.id} has no {kind}: its type or its subnet {instance.subnet} has none"
        return (
            f"instance {instance.id} has no room for {self.missing} of {self._needed} {kind}: its type has"
            f" {instance.interfaces_max} interfaces with {most} addresses"
        )


def _steps(instance: Instance, own: Iterable[MarkedInterface], families: Sequence[_Family]) -> Iterable[AddressChange]:
    """The next steps of an instance; ``families`` then say what it has no room for."""
    steps: list[AddressChange] = []
    used = {0, *instance.indexes}
    for interface in own:
        if not interface.index and len(used) >= instance.interfaces_max:
            steps.append(DeleteInterface(interface.id))
        elif not interface.index:
            index = next(number for number in range(1, len(used) + 1) if number not in used)
            used.add(index)
            steps.append(AttachInterface(interface.id, instance.id, index))
            for family in families:
                family.expect(interface)
        else:
            steps += (step for family in families for step in family.assign(interface))
    if any(family.fits for family in families) and len(used) < instance.interfaces_max:
        steps.append(CreateInterface(instance.id, instance.subnet, instance.groups))
        for family in families:
            if family.fits:
                family.missing = 0
    return steps


def _leftovers(state: AddressState, instances: set[str]) -> Iterable[AddressChange]:
    for interface in sorted(state.interfaces, key=lambda interface: interface.id):
        if interface.instance not in instances:
            yield DetachInterface(interface.id) if interface.index else DeleteInterface(interface.id)


def _node_interfaces(own: Sequence[MarkedInterface], networks: tuple[str, ...], *, ipv6: bool) -> NodeInterfaces:
    """What the agent of a node must know: the attached interfaces with addresses for pods."""
    attached = [interface for interface in own if interface.index]
    six = [_pod_interface(interface, "", interface.gateway6, interface.pods6) for interface in attached if ipv6]
    four = [_pod_interface(interface, interface.address, interface.gateway, interface.pods) for interface in attached]
    used = (interface for interface in (*four, *six) if interface.pods)
    versions = (4, 6) if ipv6 else (4,)
    return NodeInterfaces(
        networks=tuple(text for text in networks if ip_network(text).version in versions),
        interfaces=tuple(used),
    )


def _pod_interface(interface: MarkedInterface, address: str, gateway: str, pods: Iterable[str]) -> PodInterface:
    texts = tuple(str(ip_network(text)) for text in sorted(pods))
    return PodInterface(index=interface.index, mac=interface.mac, address=address, gateway=gateway, pods=texts)
