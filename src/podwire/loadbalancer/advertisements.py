"""L2Advertisements as values (pure): which nodes announce the addresses of which pools, and on which devices.

An advertisement that is wrong keeps its last good form.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.errors import ConfigError
from podwire.loadbalancer.pools import BalancerPool, check_selectors
from podwire.model.metallb import L2Advertisement, PreferredNodes
from podwire.model.node import Node
from podwire.model.selector import LabelSelector
from podwire.model.service import Service


class AdvertisementScope(msgspec.Struct, frozen=True, kw_only=True):
    """The selectors of an advertisement; an empty one selects everything."""

    name: str
    pools: frozenset[str] = frozenset()
    pool_selectors: tuple[LabelSelector, ...] = ()
    node_selectors: tuple[LabelSelector, ...] = ()
    service_selectors: tuple[LabelSelector, ...] = ()

    def has_pool(self, pool: BalancerPool) -> bool:
        """Whether addresses of a pool are announced."""
        if not self.pools and not self.pool_selectors:
            return True
        return pool.name in self.pools or any(item.matches(pool.labels) for item in self.pool_selectors)

    def has_node(self, node: Node) -> bool:
        """Whether a node announces."""
        labels = node.metadata.labels
        return not self.node_selectors or any(item.matches(labels) for item in self.node_selectors)

    def has_service(self, service: Service) -> bool:
        """Whether the addresses of a Service are announced."""
        labels = service.metadata.labels
        return not self.service_selectors or any(item.matches(labels) for item in self.service_selectors)


class L2Scope(AdvertisementScope, frozen=True, kw_only=True):
    """An L2Advertisement whose fields are valid."""

    interfaces: tuple[str, ...] = ()
    preferred: tuple[PreferredNodes, ...] = ()

    def weight(self, node: Node) -> int:
        """How much a node is preferred, 0 for not at all."""
        return sum(item.weight for item in self.preferred if item.preference.matches(node.metadata.labels))


def read_l2(item: L2Advertisement) -> L2Scope:
    """The values of an L2Advertisement.

    Raises: ConfigError naming the object and the field.
    """
    spec, source = item.spec, f"L2Advertisement {item.metadata.name}"
    check_selectors(source, "spec.ipAddressPoolSelectors", spec.ip_address_pool_selectors)
    check_selectors(source, "spec.nodeSelectors", spec.node_selectors)
    check_selectors(source, "spec.serviceSelectors", spec.service_selectors)
    for index, name in enumerate(spec.interfaces):
        if not name or len(name) > 15 or "/" in name or any(letter.isspace() for letter in name):
            raise ConfigError(source, f"spec.interfaces[{index}]", f"{name!r}: expected the name of a device")
    for index, preferred in enumerate(spec.preferred_node_selectors):
        path = f"spec.preferredNodeSelectors[{index}]"
        if not 1 <= preferred.weight <= 100:
            raise ConfigError(source, f"{path}.weight", f"{preferred.weight}: expected 1 to 100")
        check_selectors(source, f"{path}.preference", (preferred.preference,))
    return L2Scope(
        name=item.metadata.name,
        pools=frozenset(spec.ip_address_pools),
        pool_selectors=spec.ip_address_pool_selectors,
        node_selectors=spec.node_selectors,
        service_selectors=spec.service_selectors,
        interfaces=spec.interfaces,
        preferred=spec.preferred_node_selectors,
    )


def read_l2_scopes(
    objects: Iterable[L2Advertisement], last_good: Mapping[str, L2Scope]
) -> tuple[dict[str, L2Scope], dict[str, str]]:
    """The scopes by name, and the problems of objects that are wrong, which keep their form in ``last_good``."""
    scopes, problems = {}, {}
    for item in sorted(objects, key=lambda item: item.metadata.name):
        name = item.metadata.name
        try:
            scopes[name] = read_l2(item)
        except ConfigError as problem:
            problems[name] = str(problem)
            if name in last_good:
                scopes[name] = last_good[name]
    return scopes, problems
