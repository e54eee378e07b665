"""The rules of a BGPFilter, as checked values."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from podwire.bgp.configuration import Community, Network, RouteRule
from podwire.bgp.fields import AS_MAX
from podwire.errors import ConfigError
from podwire.model.bgp import BgpFilterObject, FilterOperation, FilterRule
from podwire.routing.backend import check_range
from podwire.routing.backends.bgp.fields import DEVICE_PATTERN, parse_community, parse_network

_OPERATORS: Mapping[str, Literal["equal", "not equal", "in", "not in"]] = {
    "Equal": "equal",
    "NotEqual": "not equal",
    "In": "in",
    "NotIn": "not in",
}


class FilterValues(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a BGPFilter, in order."""

    imports: tuple[RouteRule, ...] = ()
    exports: tuple[RouteRule, ...] = ()


def read_filter(obj: BgpFilterObject) -> FilterValues:
    """The rules of a BGPFilter.

    Raises: ConfigError naming the field.
    """
    source, spec = f"BGPFilter {obj.metadata.name}", obj.spec
    return FilterValues(
        imports=(*_rules(source, "importV4", spec.import_v4, 4), *_rules(source, "importV6", spec.import_v6, 6)),
        exports=(*_rules(source, "exportV4", spec.export_v4, 4), *_rules(source, "exportV6", spec.export_v6, 6)),
    )


def _rules(source: str, field: str, rules: Iterable[FilterRule], version: Literal[4, 6]) -> list[RouteRule]:
    return [_rule(source, f"spec.{field}[{index}]", rule, version) for index, rule in enumerate(rules)]


def _rule(source: str, path: str, rule: FilterRule, version: Literal[4, 6]) -> RouteRule:
    if rule.priority is not None:
        raise ConfigError(source, f"{path}.priority", "podwire gives all routes of BGP the same metric in the kernel")
    if bool(rule.cidr) != bool(rule.match_operator):
        raise ConfigError(source, f"{path}.matchOperator", "expected both cidr and matchOperator, or none of them")
    network = parse_network(source, f"{path}.cidr", rule.cidr) if rule.cidr else None
    if network is not None and network.version != version:
        raise ConfigError(source, f"{path}.cidr", f"{network}: expected a range of IPv{version}")
    if rule.interface and not DEVICE_PATTERN.fullmatch(rule.interface):
        raise ConfigError(source, f"{path}.interface", f"{rule.interface!r}: expected the name of a device, * is any")
    if rule.operations and rule.action == "Reject":
        raise ConfigError(source, f"{path}.operations", "a rejected route cannot be changed; expected action Accept")
    matched = rule.communities.values if rule.communities is not None else ()
    if rule.communities is not None and len(matched) != 1:
        raise ConfigError(source, f"{path}.communities.values", f"{len(matched)} values: expected one")
    for index, number in enumerate(rule.as_path_prefix):
        check_range(source, f"{path}.asPathPrefix[{index}]", number, 1, AS_MAX)
    changes = [_operation(source, f"{path}.operations[{i}]", operation) for i, operation in enumerate(rule.operations)]
    return RouteRule(
        version=version,
        accept=rule.action == "Accept",
        network=network,
        operator=_OPERATORS.get(rule.match_operator, "in"),
        lengths=_lengths(source, f"{path}.prefixLength", rule, network),
        interface=rule.interface,
        learned=rule.source == "RemotePeers",
        peer_type=rule.peer_type,
        community=parse_community(source, f"{path}.communities.values[0]", matched[0]) if matched else (),
        path_prefix=rule.as_path_prefix,
        added=tuple(added for added, _ in changes if added),
        prepended=tuple(number for _, prefix in reversed(changes) for number in prefix),
    )


def _lengths(source: str, path: str, rule: FilterRule, network: Network | None) -> tuple[int, int] | None:
    bounds = rule.prefix_length
    if bounds is None:
        return None
    if network is None or rule.match_operator not in ("In", "NotIn"):
        raise ConfigError(source, path, "expected a cidr with matchOperator In or NotIn beside it")
    low, high = bounds.min or 0, bounds.max if bounds.max is not None else network.max_prefixlen
    check_range(source, f"{path}.min", low, 0, network.max_prefixlen)
    low = max(low, network.prefixlen)  # A shorter prefix is in no range.
    check_range(source, f"{path}.max", high, low, network.max_prefixlen)
    return low, high


def _operation(source: str, path: str, operation: FilterOperation) -> tuple[Community, tuple[int, ...]]:
    """A community to add, or numbers to prepend; the other is empty."""
    if operation.set_priority is not None:
        problem = "podwire gives all routes of BGP the same metric in the kernel"
        raise ConfigError(source, f"{path}.setPriority", problem)
    add, prepend = operation.add_community, operation.prepend_as_path
    if (add is None) == (prepend is None):
        raise ConfigError(source, path, "expected either addCommunity or prependASPath")
    if add is not None:
        return parse_community(source, f"{path}.addCommunity.value", add.value), ()
    prefix = prepend.prefix if prepend is not None else ()
    for index, number in enumerate(prefix):
        check_range(source, f"{path}.prependASPath.prefix[{index}]", number, 1, AS_MAX)
    return (), prefix
