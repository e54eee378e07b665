"""The pools of a cluster as values, from IPAddressPools (pure).

A pool that is wrong keeps its last good form. Pools never overlap: of two that do, the one that was there first, by
its creation time and then its name, stays, and the other is refused with the name of the first.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.errors import ConfigError
from podwire.loadbalancer.ranges import Address, PoolRange, parse_range
from podwire.model.metallb import IpAddressPool
from podwire.model.selector import LabelSelector

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class BalancerPool(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An IPAddressPool whose fields are valid."""

    name: str
    ranges: tuple[PoolRange, ...]
    auto_assign: bool = True
    avoid_buggy: bool = False
    labels: dict[str, str] = {}
    pinned: bool = False
    """Whether the pool is only for the Services that the fields below select."""
    priority: int = 0
    namespaces: frozenset[str] = frozenset()
    namespace_selectors: tuple[LabelSelector, ...] = ()
    service_selectors: tuple[LabelSelector, ...] = ()

    def __contains__(self, address: Address) -> bool:
        return any(address in entry for entry in self.ranges)

    def serves(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Whether a Service with these labels, in this namespace, may have addresses of the pool."""
        if not self.pinned:
            return True
        if self.namespaces or self.namespace_selectors:
            own = dict(namespace_labels)
            if namespace not in self.namespaces and not any(item.matches(own) for item in self.namespace_selectors):
                return False
        return not self.service_selectors or any(item.matches(dict(labels)) for item in self.service_selectors)


def read_pool(pool: IpAddressPool) -> BalancerPool:
    """The values of a pool.

    Raises: ConfigError naming the pool and the field.
    """
    spec, source = pool.spec, f"IPAddressPool {pool.metadata.name}"
    if not spec.addresses:
        raise ConfigError(source, "spec.addresses", "is empty; expected at least one range of addresses")
    ranges: list[PoolRange] = []
    for index, text in enumerate(spec.addresses):
        entry = parse_range(source, f"spec.addresses[{index}]", text)
        twin = next((other for other in ranges if other.overlaps(entry)), None)
        if twin is not None:
            raise ConfigError(source, f"spec.addresses[{index}]", f"{text} overlaps {twin} of the same pool")
        ranges.append(entry)
    allocation = spec.service_allocation
    if allocation is None:
        values: dict[str, object] = {}
    else:
        if allocation.priority < 0:
            raise ConfigError(source, "spec.serviceAllocation.priority", f"{allocation.priority}: expected 0 or more")
        for field in ("namespace_selectors", "service_selectors"):
            name = "namespaceSelectors" if field == "namespace_selectors" else "serviceSelectors"
            check_selectors(source, f"spec.serviceAllocation.{name}", getattr(allocation, field))
        values = {
            "pinned": bool(allocation.namespaces or allocation.namespace_selectors or allocation.service_selectors),
            "priority": allocation.priority,
            "namespaces": frozenset(allocation.namespaces),
            "namespace_selectors": allocation.namespace_selectors,
            "service_selectors": allocation.service_selectors,
        }
    return BalancerPool(
        name=pool.metadata.name,
        ranges=tuple(ranges),
        auto_assign=spec.auto_assign,
        avoid_buggy=spec.avoid_buggy_ips,
        labels=pool.metadata.labels,
        **values,  # type: ignore[arg-type]
    )


def check_selectors(source: str, path: str, selectors: Iterable[LabelSelector]) -> None:
    """Refuses an operator that selectors do not have.

    Raises: ConfigError.
    """
    for number, selector in enumerate(selectors):
        for index, term in enumerate(selector.match_expressions):
            if term.operator not in _OPERATORS:
                where = f"{path}[{number}].matchExpressions[{index}].operator"
                raise ConfigError(source, where, f"{term.operator!r} is none of {', '.join(_OPERATORS)}")


class BalancerPools(msgspec.Struct, frozen=True):
    """The pools by name, and why objects are refused, by the name of the pool."""

    by_name: Mapping[str, BalancerPool] = {}
    problems: Mapping[str, ConfigError] = {}

    def of(self, address: Address) -> BalancerPool | None:
        """The pool with an address."""
        return next((pool for pool in self.by_name.values() if address in pool), None)


def read_pools(objects: Iterable[IpAddressPool], last_good: Mapping[str, BalancerPool]) -> BalancerPools:
    """The pools of the objects; one that is wrong, or that overlaps an older one, keeps its form in ``last_good``."""
    pools: dict[str, BalancerPool] = {}
    problems: dict[str, ConfigError] = {}
    ordered = sorted(objects, key=lambda item: (item.metadata.creation_timestamp or "", item.metadata.name))
    for item in ordered:
        name = item.metadata.name
        try:
            pools[name] = _apart(read_pool(item), pools)
        except ConfigError as problem:
            problems[name] = problem
            if name in last_good and not _overlap(last_good[name], pools):
                pools[name] = last_good[name]
    return BalancerPools(pools, problems)


def _apart(pool: BalancerPool, pools: Mapping[str, BalancerPool]) -> BalancerPool:
    if other := _overlap(pool, pools):
        problem = f"overlaps the IPAddressPool {other}; an address may be in one pool only"
        raise ConfigError(f"IPAddressPool {pool.name}", "spec.addresses", problem)
    return pool


def _overlap(pool: BalancerPool, pools: Mapping[str, BalancerPool]) -> str:
    """The name of a pool that has an address of this one; empty without any."""
    for other in pools.values():
        if other.name != pool.name and any(a.overlaps(b) for a in pool.ranges for b in other.ranges):
            return other.name
    return ""
