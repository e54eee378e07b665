"""Pools of pod addresses and the blocks of them that nodes claim, as values (pure).

An IPPool is split into blocks of ``blockSize``, each an IPAMBlock object whose name follows from its range: of two
nodes that create the same block, the API refuses one. Blocks of pools that overlap, or of a pool that came again with
another block size, have other names; so a block is used when its node has seen that no other block overlaps
(``confirmed``). Sources: Calico's design/ipam and its API reference of IPPool.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from podwire.errors import ConfigError
from podwire.model.bgp import IpPoolObject
from podwire.model.expression import EVERYTHING, Expression, parse_expression
from podwire.model.ipam import IpamBlock
from podwire.model.meta import ObjectMeta

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DEFAULT_BLOCK_SIZES = {4: 26, 6: 122}
"""Calico's."""
BLOCK_SIZES = {4: (20, 29), 6: (116, 125)}
"""A smaller block would have no address for a pod: three are the network's, the node's and the broadcast address."""


class BlockPool(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pool; ``disabled``: it gives no new addresses. ``nodes`` are those that may claim its blocks."""

    name: str
    network: Network
    block_size: int
    disabled: bool = False
    nodes: Expression = EVERYTHING

    def is_for(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels gets new addresses from the pool."""
        return not self.disabled and self.nodes.matches(labels)

    @property
    def count(self) -> int:
        """The number of its blocks."""
        return 1 << (self.block_size - self.network.prefixlen)

    def block(self, number: int) -> Network:
        """A block by its number."""
        size = 1 << (self.network.max_prefixlen - self.block_size)
        kind = IPv4Network if self.network.version == 4 else IPv6Network
        return kind((int(self.network.network_address) + number * size, self.block_size))


class Block(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An IPAMBlock; the fields are those of its spec, ``meta`` its metadata."""

    name: str
    network: Network
    pool: str
    node: str = ""
    confirmed: bool = False
    lent: Mapping[Address, str] = {}
    requests: Mapping[str, int] = {}
    meta: ObjectMeta = ObjectMeta()

    def lent_to(self, node: str) -> tuple[Address, ...]:
        """The addresses that a node has borrowed, in order."""
        return tuple(sorted(address for address, borrower in self.lent.items() if borrower == node))


def block_name(network: Network) -> str:
    """The name of a block's object: its range, in the letters that a name may have."""
    text = network.network_address.exploded if network.version == 6 else str(network.network_address)
    return f"{text.replace(':', '-').replace('.', '-')}-{network.prefixlen}"


def read_pool(obj: IpPoolObject) -> BlockPool:
    """The pool of an IPPool.

    Raises: ConfigError naming the field.
    """
    source, spec = f"IPPool {obj.metadata.name}", obj.spec
    network = _network(source, "spec.cidr", spec.cidr)
    size = spec.block_size if spec.block_size is not None else DEFAULT_BLOCK_SIZES[network.version]
    least, most = BLOCK_SIZES[network.version]
    if not max(least, network.prefixlen) <= size <= most:
        expected = f"expected {max(least, network.prefixlen)} to {most}"
        raise ConfigError(source, "spec.blockSize", f"{size}: {expected} for a block of {network}")
    if "".join(spec.namespace_selector.split()) not in ("", "all()"):
        raise ConfigError(source, "spec.namespaceSelector", f"{spec.namespace_selector!r}: expected all()")
    if spec.assignment_mode not in ("", "Automatic"):
        raise ConfigError(source, "spec.assignmentMode", f"{spec.assignment_mode!r}: expected Automatic")
    selector = spec.node_selector
    return BlockPool(
        name=obj.metadata.name,
        network=network,
        block_size=size,
        disabled=spec.disabled or bool(spec.allowed_uses and "Workload" not in spec.allowed_uses),
        nodes=parse_expression(selector, source, "spec.nodeSelector") if selector.strip() else EVERYTHING,
    )


def check_overlap(pool: BlockPool, earlier: Iterable[BlockPool]) -> None:
    """Checks a pool against those that were there before.

    Raises: ConfigError.
    """
    for other in earlier:
        if other.network.version == pool.network.version and other.network.overlaps(pool.network):
            problem = f"{pool.network} overlaps IPPool {other.name} ({other.network})"
            raise ConfigError(f"IPPool {pool.name}", "spec.cidr", problem)


def read_block(obj: IpamBlock) -> Block:
    """The block of an IPAMBlock.

    Raises: ConfigError naming the field.
    """
    source, spec = f"IPAMBlock {obj.metadata.name}", obj.spec
    network = _network(source, "spec.cidr", spec.cidr)
    if obj.metadata.name != block_name(network):
        raise ConfigError(source, "metadata.name", f"expected {block_name(network)} for the range {network}")
    lent: dict[Address, str] = {}
    for text, node in spec.lent.items():
        try:
            address = ip_address(text)
        except ValueError as problem:
            raise ConfigError(source, f"spec.lent[{text}]", "is not an address") from problem
        if address.version != network.version or address not in network:
            raise ConfigError(source, f"spec.lent[{text}]", f"is not in {network}")
        lent[address] = node
    return Block(
        name=obj.metadata.name,
        network=network,
        pool=spec.pool,
        node=spec.node,
        confirmed=spec.confirmed,
        lent=lent,
        requests=spec.requests,
        meta=obj.metadata,
    )


def overlapping(network: Network, networks: Iterable[Network]) -> Iterator[Network]:
    """The networks that share an address with a network."""
    return (other for other in networks if other.version == network.version and other.overlaps(network))


def _network(source: str, path: str, text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError as problem:
        raise ConfigError(source, path, f"{problem}; expected a range such as 10.244.0.0/16") from problem
    if "%" in text:
        raise ConfigError(source, path, f"{text!r} names a device; expected a range such as 10.244.0.0/16")
    return network


class PoolReader:
    """Reads the pools of a cluster; a pool that is wrong keeps its last good form."""

    def __init__(self) -> None:
        self._good: dict[str, BlockPool] = {}
        self.problems: dict[str, str] = {}
        """Why pools were refused at the last call of :meth:`read`, by name."""

    def read(self, objects: Iterable[IpPoolObject]) -> tuple[BlockPool, ...]:
        """The valid pools, the oldest first; of pools that overlap, the oldest is valid."""
        pools: list[BlockPool] = []
        good: dict[str, BlockPool] = {}
        self.problems = {}
        for obj in sorted(objects, key=lambda obj: (obj.metadata.creation_timestamp or "", obj.metadata.name)):
            name = obj.metadata.name
            try:
                pool = read_pool(obj)
                check_overlap(pool, pools)
            except ConfigError as problem:
                self.problems[name] = str(problem)
                earlier = self._good.get(name)
                if earlier is None or any(overlapping(earlier.network, [other.network for other in pools])):
                    continue
                pool = earlier
            good[name] = pool
            pools.append(pool)
        self._good = good
        return tuple(pools)
