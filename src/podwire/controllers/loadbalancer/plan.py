"""The next step for the addresses of one Service, and the patches of its objects (pure)."""

from collections.abc import Iterable

import msgspec

from podwire.cluster.names import LOAD_BALANCER_RELEASED
from podwire.errors import ConfigError, LoadBalancerError
from podwire.loadbalancer.allocation import Allocation, Allocator
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.loadbalancer.request import FROM_POOL, AddressRequest, read_request
from podwire.model.service import Service

Patch = dict[str, object]


class AddressDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one Service.

    ``clear`` says that its status must be empty before its former addresses are free. ``problem`` is the reason why it
    has no address; it waits then.
    """

    key: str
    uid: str = ""
    before: tuple[Address, ...] = ()
    """The addresses that it held."""
    allocation: Allocation | None = None
    clear: bool = False
    problem: str = ""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses that it holds from now on."""
        return self.allocation.addresses if self.allocation is not None else ()


def wants(service: Service, load_balancer_class: str) -> bool:
    """Whether a Service has addresses of podwire's pools."""
    meta, spec = service.metadata, service.spec
    return (
        spec.type == "LoadBalancer"
        and meta.deletion_timestamp is None
        and (spec.load_balancer_class or "") == load_balancer_class
    )


def decide(key: str, service: Service | None, allocator: Allocator, load_balancer_class: str) -> AddressDecision:
    """Decides about a Service, and records the decision in the allocator."""
    held = allocator.addresses_of(key)
    if service is None or not wants(service, load_balancer_class):
        allocator.release(key)
        ours = service is not None and FROM_POOL in service.metadata.annotations
        return AddressDecision(key=key, before=held, clear=ours or (service is not None and bool(held)))
    shown, uid = shown_addresses(service), service.metadata.uid
    if not held and _is_foreign(service, shown, allocator):
        return AddressDecision(key=key, uid=uid)
    try:
        request = read_request(service)
    except ConfigError as problem:
        return _keep_unread(key, service, allocator, str(problem))
    allocator.release(key)
    try:
        allocation = allocator.allocate(request, held or shown)
    except LoadBalancerError as problem:
        text = f'Failed to allocate IP for "{key}": {problem}'
        return AddressDecision(key=key, uid=uid, before=held, clear=bool(held or shown), problem=text)
    allocator.hold(key, allocation.addresses, request)
    clear = not {*shown, *held} <= set(allocation.addresses)
    return AddressDecision(key=key, uid=uid, before=held, allocation=allocation, clear=clear)


def _is_foreign(service: Service, shown: tuple[Address, ...], allocator: Allocator) -> bool:
    """Whether another program has written the addresses of a Service: they come from no pool, and none is named."""
    known = any(allocator.pools.of(address) is not None for address in shown)
    return bool(shown) and not known and FROM_POOL not in service.metadata.annotations


def _keep_unread(key: str, service: Service, allocator: Allocator, problem: str) -> AddressDecision:
    """The last good state stays while a Service has wrong annotations."""
    held, pool = allocator.addresses_of(key), service.metadata.annotations.get(FROM_POOL, "")
    allocation = Allocation(pool, held) if held and pool else None
    text = f'Failed to allocate IP for "{key}": {problem}'
    return AddressDecision(key=key, uid=service.metadata.uid, before=held, allocation=allocation, problem=text)


def rebuild(allocator: Allocator, holders: Iterable[tuple[Address, str, str]], services: dict[str, Service]) -> None:
    """Makes the allocator hold what the records say: ``holders`` has address, key and uid of each holder."""
    for key in {key for _, keys in list(allocator.in_use().items()) for key in keys}:
        allocator.release(key)
    held: dict[str, list[Address]] = {}
    uids: dict[str, str] = {}
    for address, key, uid in holders:
        held.setdefault(key, []).append(address)
        uids[key] = uid
    for key, addresses in held.items():
        allocator.hold(key, addresses, _request_of(services.get(key), uids[key]))


def _request_of(service: Service | None, uid: str) -> AddressRequest | None:
    if service is None or service.metadata.uid != uid:
        return None
    try:
        return read_request(service)
    except ConfigError:
        return None


def shown_addresses(service: Service) -> tuple[Address, ...]:
    """The addresses in the status of a Service."""
    parsed = (parse_address(entry.ip) for entry in service.status.load_balancer.ingress if entry.ip)
    return tuple(address for address in parsed if address is not None)


def metadata_patch(service: Service, pool: str | None, version: str) -> Patch | None:
    """The patch that names the pool of a Service's addresses; None when it is named."""
    if service.metadata.annotations.get(FROM_POOL) == pool:
        return None
    return {"metadata": {"resourceVersion": version, "annotations": {FROM_POOL: pool}}}


def status_patch(service: Service, addresses: tuple[Address, ...], version: str) -> Patch | None:
    """The patch that shows the addresses; None when the status has them."""
    ingress = service.status.load_balancer.ingress
    if [entry.ip for entry in ingress] == [str(address) for address in addresses]:
        return None
    entries = [{"ip": str(address), "ipMode": "VIP"} for address in addresses]
    return {"metadata": {"resourceVersion": version}, "status": {"loadBalancer": {"ingress": entries or None}}}


def touch_patch(freed: tuple[Address, ...], version: str) -> Patch:
    """The patch that changes nothing but the version of a Service whose status never showed its addresses.

    A controller that has lost its lease, and is about to show these addresses, is refused then.
    """
    text = ",".join(map(str, freed))
    return {"metadata": {"resourceVersion": version, "annotations": {LOAD_BALANCER_RELEASED: text}}}
