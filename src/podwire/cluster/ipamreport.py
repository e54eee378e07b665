"""Which node, block and pod has which addresses, and what is left over: the report of ``podwire ipam`` (pure).

An address leaks when a node holds it for a pod that the API does not have, a block when its node is gone. Both are
given back without help: an agent frees addresses of pods that vanished after two minutes, and the controller
``ipamblocks`` takes blocks from nodes that are gone after one. A report taken before is not wrong, so a leak is certain
only when it stays.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

import msgspec

from podwire.cluster.addresses import owns_addresses
from podwire.cluster.blocks import Block, BlockPool, Network
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.wording import count


class HeldAddress(msgspec.Struct, frozen=True, kw_only=True, tag="address"):
    """An address that a node's agent holds for an interface of a pod; ``uid`` is that of the pod, if it is known."""

    address: str
    pod: str
    uid: str = ""
    container: str = ""
    interface: str = ""


class HeldRange(msgspec.Struct, frozen=True, kw_only=True, tag="range"):
    """A range of a node as its agent uses it: the numbers of addresses. ``closed``: it gives no new ones."""

    cidr: str
    size: int
    held: int
    cooling: int
    lent: int
    closed: bool = False


AgentLine = HeldAddress | HeldRange
"""A line of the page ``/ipam`` of an agent."""


class PoolRow(msgspec.Struct, frozen=True):
    """A pool: its range, the numbers of claimed blocks and of all, and whether it gives new addresses."""

    name: str
    cidr: str
    claimed: int
    blocks: int
    disabled: bool


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a node: a block, a borrowed address, or a pod CIDR of the Node. None: the agent was not asked."""

    node: str
    cidr: str
    pool: str
    held: int | None
    free: int | None
    cooling: int | None
    lent: int
    state: str


class AddressRow(msgspec.Struct, frozen=True, kw_only=True):
    """An address in use, and its pod; ``problem`` says why nothing needs it, and is empty for an address in use."""

    address: str
    node: str
    pod: str
    cidr: str = ""
    problem: str = ""


class IpamReport(msgspec.Struct, frozen=True):
    """The whole report; ``leaks`` are texts, one for each address or block that is left over."""

    pools: tuple[PoolRow, ...]
    ranges: tuple[RangeRow, ...]
    addresses: tuple[AddressRow, ...]
    leaks: tuple[str, ...]


class ClusterAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is made of: objects of the API, and the lines of the agents that answered, by node."""

    pools: Sequence[BlockPool]
    blocks: Sequence[Block]
    nodes: Sequence[Node]
    pods: Sequence[Pod]
    agents: Mapping[str, Sequence[AgentLine]]


def report(cluster: ClusterAddresses) -> IpamReport:
    """The report, by the names of pools and nodes and the order of addresses."""
    ranges = tuple(_ranges(cluster))
    addresses = tuple(sorted(_addresses(cluster), key=_order))
    leaks = [f"{row.address} on {row.node}: {row.problem}" for row in addresses if row.problem]
    return IpamReport(
        pools=tuple(_pools(cluster)), ranges=ranges, addresses=addresses, leaks=(*leaks, *_leaked_blocks(cluster))
    )


def _order(row: AddressRow) -> tuple[int, int]:
    address = ip_address(row.address)
    return address.version, int(address)


def _pools(cluster: ClusterAddresses) -> Iterator[PoolRow]:
    for pool in sorted(cluster.pools, key=lambda pool: pool.name):
        claimed = sum(block.pool == pool.name for block in cluster.blocks)
        yield PoolRow(pool.name, str(pool.network), claimed, pool.count, pool.disabled)


def _ranges(cluster: ClusterAddresses) -> Iterator[RangeRow]:
    blocks = {block.network: block for block in cluster.blocks}
    for node in sorted(cluster.nodes, key=lambda node: node.metadata.name):
        name = node.metadata.name
        answers = {line.cidr: line for line in cluster.agents.get(name, ()) if isinstance(line, HeldRange)}
        pending = [block.network for block in cluster.blocks if block.node == name and not block.confirmed]
        for network in dict.fromkeys((*node.pod_networks, *pending)):
            block = blocks.get(network)
            lender = next((b for b in cluster.blocks if network[0] in b.lent and b.lent[network[0]] == name), None)
            line = answers.get(str(network))
            yield RangeRow(
                node=name,
                cidr=str(network),
                pool=block.pool if block is not None else lender.pool if lender is not None else "",
                held=line.held if line is not None else None,
                free=max(0, line.size - line.held - line.lent) if line is not None else None,
                cooling=line.cooling if line is not None else None,
                lent=len(block.lent) if block is not None else 0,
                state=_state(block, lender, line),
            )


def _state(block: Block | None, lender: Block | None, line: HeldRange | None) -> str:
    if block is not None and not block.confirmed:
        return "pending"
    if line is not None and line.closed:
        return "closed"
    if lender is not None:
        return f"borrowed from {lender.node or 'a node that is gone'}"
    return "in use"


def _addresses(cluster: ClusterAddresses) -> Iterator[AddressRow]:
    pods = {pod.metadata.uid: pod for pod in cluster.pods}
    names = {(key_of(pod.metadata), pod.spec.node_name) for pod in cluster.pods}
    reported: set[str] = set()
    for node in cluster.nodes:
        name = node.metadata.name
        for line in cluster.agents.get(name, ()):
            if isinstance(line, HeldAddress):
                reported.add(line.address)
                exists = line.uid in pods if line.uid in pods or not line.pod else (line.pod, name) in names
                problem = "" if exists else f"held for the pod {line.pod or 'without a name'}, which does not exist"
                yield AddressRow(
                    address=line.address,
                    node=name,
                    pod=line.pod,
                    cidr=_range_of(line.address, node.pod_networks),
                    problem=problem,
                )
    networks = {node.metadata.name: node.pod_networks for node in cluster.nodes}
    for pod in cluster.pods:
        where = pod.spec.node_name
        for address in pod.addresses if owns_addresses(pod) else ():
            if address not in reported:
                unknown = where in cluster.agents
                yield AddressRow(
                    address=address,
                    node=where,
                    pod=key_of(pod.metadata),
                    cidr=_range_of(address, networks.get(where, ())),
                    problem=f"the pod {key_of(pod.metadata)} has it, and the agent does not hold it" if unknown else "",
                )


def _range_of(text: str, networks: Iterable[Network]) -> str:
    address = ip_address(text)
    inside = [network for network in networks if network.version == address.version and address in network]
    return str(max(inside, key=lambda network: network.prefixlen)) if inside else ""


def _leaked_blocks(cluster: ClusterAddresses) -> Iterator[str]:
    names = {node.metadata.name for node in cluster.nodes}
    pools = {pool.name for pool in cluster.pools}
    for block in sorted(cluster.blocks, key=lambda block: (block.network.version, int(block.network[0]))):
        if not block.node:
            number = len(block.lent)
            lent = f"{count(number, 'address', 'addresses')} of it {'is' if number == 1 else 'are'} lent"
            yield f"block {block.network}: no node has it, and {lent}"
        elif block.node not in names:
            yield f"block {block.network}: its node {block.node} does not exist"
        if block.pool not in pools:
            yield f"block {block.network}: there is no valid IPPool {block.pool}"
        for address, borrower in sorted(block.lent.items(), key=lambda item: int(item[0])):
            if borrower not in names:
                yield f"{address} of block {block.network}: lent to {borrower}, which does not exist"


def releasable(cluster: ClusterAddresses, text: str) -> Block:
    """The block with a range that nobody uses, because its node is gone and no address of it is lent.

    Raises: ValueError with the reason.
    """
    network = ip_network(text)
    block = next((block for block in cluster.blocks if block.network == network), None)
    if block is None:
        raise ValueError(f"no IPAMBlock has the range {network}")
    names = {node.metadata.name for node in cluster.nodes}
    if block.node in names:
        raise ValueError(f"node {block.node} has it, and gives it back itself when no pod needs it")
    if users := sorted({node for node in block.lent.values() if node in names}):
        raise ValueError(f"its addresses are lent to {', '.join(users)}")
    addresses = [
        (address, pod) for pod in cluster.pods if owns_addresses(pod) for address in map(ip_address, pod.addresses)
    ]
    if user := next((pod for address, pod in addresses if address in network), None):
        raise ValueError(f"the pod {key_of(user.metadata)} has an address of it")
    return block
