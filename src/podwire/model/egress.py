"""EgressPolicy (``podwire.io/v1alpha1``): the source address with which pods leave the cluster."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from podwire.errors import ConfigError
from podwire.model.meta import Condition, Fact, ObjectMeta
from podwire.model.selector import LabelSelector

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class EgressPolicySpec(Fact, frozen=True):
    """The pods, their destinations, the source addresses, and the nodes that may have these.

    A selector that is absent selects everything. Without ``destination_cidrs`` every destination outside the cluster
    counts, except ``excluded_cidrs``. ``egress_ips`` has at most one address per family.
    """

    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None
    destination_cidrs: tuple[str, ...] = msgspec.field(default=(), name="destinationCIDRs")
    excluded_cidrs: tuple[str, ...] = msgspec.field(default=(), name="excludedCIDRs")
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")
    node_selector: LabelSelector | None = None


class EgressPolicyStatus(Fact, frozen=True):
    """The node that has the addresses, empty for none; condition ``Ready``."""

    node: str = ""
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")
    conditions: tuple[Condition, ...] = ()


class EgressPolicy(Fact, frozen=True):
    """``podwire.io/v1alpha1`` EgressPolicy, cluster-scoped."""

    api_version: str = "podwire.io/v1alpha1"
    kind: str = "EgressPolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: EgressPolicySpec = EgressPolicySpec()
    status: EgressPolicyStatus = EgressPolicyStatus()


class EgressScope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The spec of a valid EgressPolicy as values."""

    namespaces: LabelSelector
    pods: LabelSelector
    nodes: LabelSelector
    destinations: tuple[Network, ...]
    excluded: tuple[Network, ...]
    addresses: tuple[Address, ...]

    def address(self, version: int) -> Address | None:
        """The address of a family, or None."""
        return next((address for address in self.addresses if address.version == version), None)


def read_egress_policy(policy: EgressPolicy) -> EgressScope:
    """The values of a policy.

    Raises: ConfigError naming the policy and the field.
    """
    spec, source = policy.spec, f"EgressPolicy {policy.metadata.name}"
    selectors = {
        "namespaceSelector": spec.namespace_selector,
        "podSelector": spec.pod_selector,
        "nodeSelector": spec.node_selector,
    }
    for field, selector in selectors.items():
        for index, term in enumerate(selector.match_expressions if selector is not None else ()):
            if term.operator not in _OPERATORS:
                path = f"spec.{field}.matchExpressions[{index}].operator"
                raise ConfigError(source, path, f"{term.operator!r} is none of {', '.join(_OPERATORS)}")
    return EgressScope(
        namespaces=spec.namespace_selector or LabelSelector(),
        pods=spec.pod_selector or LabelSelector(),
        nodes=spec.node_selector or LabelSelector(),
        destinations=_networks(source, "spec.destinationCIDRs", spec.destination_cidrs),
        excluded=_networks(source, "spec.excludedCIDRs", spec.excluded_cidrs),
        addresses=_addresses(source, spec.egress_ips),
    )


def _networks(source: str, path: str, texts: tuple[str, ...]) -> tuple[Network, ...]:
    networks = []
    for index, text in enumerate(texts):
        try:
            networks.append(ip_network(text))
        except ValueError as problem:
            raise ConfigError(source, f"{path}[{index}]", str(problem)) from problem
    return tuple(networks)


def _addresses(source: str, texts: tuple[str, ...]) -> tuple[Address, ...]:
    addresses: list[Address] = []
    for index, text in enumerate(texts):
        path = f"spec.egressIPs[{index}]"
        try:
            address = ip_address(text)
        except ValueError as problem:
            raise ConfigError(source, path, str(problem)) from problem
        if address.is_loopback or address.is_multicast or address.is_link_local or address.is_unspecified:
            raise ConfigError(source, path, f"{address} is not an address that other machines can answer")
        if any(address.version == other.version for other in addresses):
            raise ConfigError(source, path, f"{address} is the second IPv{address.version} address; expected one")
        addresses.append(address)
    if not addresses:
        raise ConfigError(source, "spec.egressIPs", "is empty; expected one address of each family, or of one")
    return tuple(addresses)
