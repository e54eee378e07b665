"""The node's address management: pools in memory over the ledger on disk.

A pod gets one address of each family that the node has a pod CIDR for; several CIDRs of a family are used in their
order. Either all addresses of a pod are held and durable, or none. A pod CIDR that the node no longer has gives no
new addresses; pods that hold its addresses keep them. A pod in another network than the default one gets the addresses
of the node's ranges of that network.
"""

import datetime
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from ipaddress import ip_address

import msgspec

from podwire.cluster.names import POD_NETWORK
from podwire.cluster.podnetworks import DEFAULT_NETWORK
from podwire.cni.ipam.blocks.plan import RangeUsage
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.ipam.pool import COOLDOWN_S, Address, Network, Pool
from podwire.cni.protocol import AttachmentKey
from podwire.cni.spec import INVALID_CONFIG, TRY_LATER
from podwire.errors import CniError

_IMPORTED = "imported addresses"
"""The name under which the ledger keeps when addresses of another plugin were taken over."""
_AWAY = "addresses lent to other nodes"


class Leases:
    """The address leases of one node; ``now`` gives the wall-clock instant."""

    def __init__(self, ledger: Ledger, now: Callable[[], datetime.datetime], cooldown_s: float = COOLDOWN_S) -> None:
        self._ledger = ledger
        self._now = now
        self._cooldown_s = cooldown_s
        self._pools: dict[str, tuple[Pool, ...]] = {}
        """The pools by the name of the pod network."""
        self._served: object = None
        attachments = ledger.attachments()
        self.held: dict[AttachmentKey, Attachment] = {k: a for k, a in attachments.items() if a.host_link}
        """The attachments of pods that podwire wires."""
        self.lent: dict[AttachmentKey, Attachment] = {k: a for k, a in attachments.items() if not a.host_link}
        """The addresses of pods that other plugins wire, which use podwire as their IPAM plugin."""
        self.containers: dict[str, dict[AttachmentKey, None]] = {}
        """The keys in ``held`` of each container."""
        for key in self.held:
            self.containers.setdefault(key.container, {})[key] = None
        self.early = 0
        """How many addresses were handed out before their cooldown had ended."""
        self.closed: frozenset[Network] = frozenset()
        """Ranges that give no new addresses."""
        self.changed: Callable[[], None] = _ignore
        """Called after an address was taken or freed."""
        remembered = ledger.fact(_AWAY)
        self._away = frozenset(map(ip_address, msgspec.json.decode(remembered, type=list[str]) if remembered else ()))

    @property
    def facts(self) -> Ledger:
        """The ledger, for values that belong to no address, and to wait for the disk."""
        return self._ledger

    @property
    def away(self) -> frozenset[Address]:
        """The addresses of this node's ranges that other nodes use."""
        return self._away

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of the default network, in the order of the node's pod CIDRs."""
        return self._pools.get(DEFAULT_NETWORK, ())

    @property
    def all_pools(self) -> tuple[Pool, ...]:
        """The pools of all networks, those of the default one first."""
        return tuple(pool for pools in self._pools.values() for pool in pools)

    def serve(
        self,
        networks: Iterable[Network],
        *,
        whole: bool = False,
        further: Mapping[str, Sequence[Network]] = {},
    ) -> None:
        """Sets the node's pod CIDRs; without effect when they are the same as before.

        With ``whole`` they are addresses that a cloud assigned, and all of them are for pods. ``further`` are the
        node's ranges of further pod networks, by their names.
        """
        default = tuple(networks)
        served = default, whole, dict(further)
        if served == self._served:
            return
        self._served = served
        addresses = {ip for attachment in (*self.held.values(), *self.lent.values()) for ip in attachment.ips}
        addresses |= self._away
        released, cursors = self._ledger.released(), self._ledger.cursors()
        self._pools = {DEFAULT_NETWORK: tuple(Pool(network, self._cooldown_s, whole=whole) for network in default)}
        for name, ranges in further.items():
            self._pools[name] = tuple(Pool(network, self._cooldown_s) for network in ranges)
        for pool in self.all_pools:
            pool.restore(addresses, released, cursors.get(pool.network.version))

    def choose(self, requested: Iterable[Address] = (), network: str = DEFAULT_NETWORK) -> tuple[Address, ...]:
        """One address of each family, taken in memory only; ``hold`` or ``put_back`` must follow.

        The addresses ``requested`` are taken for their families, even when their cooldown has not ended. ``network`` is
        the name of the pod network.

        Raises: CniError 11 when a family has no free address, the node has no pod CIDR or a requested address is in
        use; 7 when a requested address is outside the node's ranges, or the node has no such network. Nothing is taken
        then.
        """
        if not self.pools:
            raise CniError(TRY_LATER, "the node has no pod CIDR yet")
        pools = _pools_of(network, self._pools)
        chosen: list[Address] = []
        pinned = {address.version: address for address in requested}
        families = {pool.network.version for pool in pools}
        try:
            for address in pinned.values():
                _claim(address, pools, self.closed)
                chosen.append(address)
            for family in families - pinned.keys():
                chosen.append(self._choose_of(family, pools))
        except CniError:
            self.put_back(chosen)
            raise
        return tuple(sorted(chosen, key=lambda address: address.version))

    def take(self, addresses: Iterable[Address]) -> tuple[Address, ...]:
        """Takes addresses that another IPAM plugin assigned; those outside the pod CIDRs need nothing.

        Raises: CniError 11 when an address is in use here. Nothing is taken then.
        """
        claimed: list[Address] = []
        try:
            for address in addresses:
                for pool in self.all_pools:
                    if pool.contains(address):
                        pool.claim(address)
                claimed.append(address)
        except CniError:
            self.put_back(claimed)
            raise
        return tuple(claimed)

    def _choose_of(self, family: int, network: Sequence[Pool]) -> Address:
        pools = [pool for pool in network if pool.network.version == family and pool.network not in self.closed]
        now = self._now().timestamp()
        for pool in pools:
            if pool.has_cooled(now):
                return pool.allocate(now)[0]
        for pool in pools:
            if pool.free > 0:
                self.early += 1
                return pool.allocate(now)[0]
        ranges = ", ".join(str(pool.network) for pool in pools) or f"any open range of IPv{family}"
        raise CniError(TRY_LATER, f"no free address in {ranges}", f"{sum(p.size for p in pools)} are in use")

    def put_back(self, addresses: Iterable[Address]) -> None:
        """Frees addresses that were chosen and are not held."""
        now = self._now().timestamp()
        for address in addresses:
            for pool in self.all_pools:
                if address in pool.network:
                    pool.release(address, now)

    def hold(self, *attachments: Attachment, waits: bool = True) -> None:
        """Makes attachments durable, all or none; without ``waits`` :meth:`Ledger.wait` must follow.

        Raises: CniError 5; nothing is held then.
        """
        self._ledger.hold(*attachments, waits=waits)
        for attachment in attachments:
            (self.held if attachment.host_link else self.lent)[attachment.key] = attachment
            if attachment.host_link:
                self.containers.setdefault(attachment.key.container, {})[attachment.key] = None
        self.changed()

    def update(self, attachment: Attachment) -> None:
        """Makes changed facts of a held attachment durable; its addresses are as before."""
        self._ledger.update(attachment)
        self.held[attachment.key] = attachment

    def adopt(self, attachment: Attachment) -> None:
        """Writes an attachment to the ledger that was found in the kernel only."""
        for ip in attachment.ips:
            for pool in self.all_pools:
                if ip in pool.network and pool.contains(ip):
                    pool.claim(ip)
        self.hold(attachment)

    def import_held(self, attachments: Iterable[Attachment], last: Iterable[Address]) -> int:
        """Takes over addresses of another plugin, once in the life of the ledger; returns the number of attachments.

        Attachments that the ledger has, and addresses in use, are left out. Must be called before :meth:`serve`.

        Raises: CniError 5 when the disk cannot be written.
        """
        if self._ledger.fact(_IMPORTED):
            return 0
        in_use = {ip for held in (*self.held.values(), *self.lent.values()) for ip in held.addresses}
        count = 0
        for attachment in attachments:
            addresses = tuple(ip for ip in attachment.addresses if ip not in in_use)
            if addresses and attachment.key not in self.lent:
                self.hold(msgspec.structs.replace(attachment, addresses=addresses))
                in_use.update(addresses)
                count += 1
        for address in last:
            self._ledger.continue_after(address)
        self._ledger.remember(_IMPORTED, self._now().isoformat().encode())
        return count

    def release(self, attachments: Iterable[Attachment]) -> None:
        """Deletes attachments from the ledger and starts the cooldown of their addresses."""
        released = tuple(attachments)
        if not released:
            return
        now = self._now().timestamp()
        self._ledger.release(released, now, now - self._cooldown_s)
        for attachment in released:
            (self.held if attachment.host_link else self.lent).pop(attachment.key, None)
            if attachment.host_link:
                keys = self.containers.get(attachment.key.container, {})
                keys.pop(attachment.key, None)
                if not keys:
                    self.containers.pop(attachment.key.container, None)
            self.put_back(attachment.ips)
        self.changed()

    def lend(self, addresses: frozenset[Address]) -> None:
        """Sets which addresses of this node's ranges other nodes use; on disk before it has effect.

        Raises: CniError 5 when the disk cannot be written; nothing is changed then.
        """
        if addresses == self._away:
            return
        self._ledger.remember(_AWAY, msgspec.json.encode(sorted(map(str, addresses))))
        returned, added, self._away = self._away - addresses, addresses - self._away, addresses
        self.put_back(returned)
        for pool in self.all_pools:
            pool.occupy(address for address in added if address in pool.network)

    def spare(self, network: Network, count: int) -> tuple[Address, ...]:
        """Up to ``count`` addresses of a range that another node may use: those that a pod would get last."""
        now = self._now().timestamp()
        pool = next((pool for pool in self.pools if pool.network == network), None)
        return () if pool is None else pool.last_free(count, now)

    def usages(self) -> Callable[[Network], RangeUsage]:
        """A function that returns the present usage of a range."""
        now = self._now().timestamp()
        held = [ip for attachment in (*self.held.values(), *self.lent.values()) for ip in attachment.ips]
        cooling = [ip for ip, at in self._ledger.released().items() if now - at < self._cooldown_s]

        def usage(network: Network) -> RangeUsage:
            counts = (_inside(network, addresses) for addresses in (held, cooling, self._away))
            return RangeUsage(Pool(network).size, *counts)

        return usage

    def close(self) -> None:
        """Closes the ledger."""
        self._ledger.close()

    def check_disk(self) -> None:
        """Writes to the ledger.

        Raises: CniError 5 when that fails: no pod can be added.
        """
        self._ledger.remember("disk check", self._now().isoformat().encode())


def _ignore() -> None:
    """Does nothing."""


def _pools_of(network: str, pools: Mapping[str, tuple[Pool, ...]]) -> tuple[Pool, ...]:
    if network not in pools:
        problem = f"annotation {POD_NETWORK}: this node has no pod network {network!r}"
        raise CniError(INVALID_CONFIG, problem, f"the pod networks are {', '.join(pools)}")
    return pools[network]


def _claim(address: Address, pools: Sequence[Pool], closed: Container[Network]) -> None:
    for pool in pools:
        if pool.contains(address) and pool.network not in closed:
            pool.claim(address)
            return
    ranges = ", ".join(str(pool.network) for pool in pools)
    raise CniError(INVALID_CONFIG, f"{address} is not in a pod CIDR of this node", f"the pod CIDRs are {ranges}")


def _inside(network: Network, addresses: Iterable[Address]) -> int:
    """The number of addresses in a network."""
    return sum(1 for address in addresses if address.version == network.version and address in network)
