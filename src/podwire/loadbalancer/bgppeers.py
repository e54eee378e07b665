"""BGPPeers, BGPAdvertisements, Communities and BFDProfiles of ``metallb.io`` as values (pure).

An object that says something wrong, or something that podwire does not honour, is refused as a whole, with its field.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from podwire.bgp.configuration import BfdTimes, BgpSession, Community, RouteRule, SecondFamily
from podwire.bgp.fields import check_password, community, parse_seconds
from podwire.errors import ConfigError
from podwire.loadbalancer.advertisements import AdvertisementScope
from podwire.loadbalancer.pools import check_selectors
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.model.metallb import BfdProfile, BgpAdvertisement, MetalLbCommunity, MetalLbPeer
from podwire.model.node import Node
from podwire.model.secret import PASSWORD_TYPE, Secret
from podwire.model.selector import LabelSelector

T = TypeVar("T")
_LEAST_HOLD_S, _MOST_HOLD_S = 3, 65535


class BgpScope(AdvertisementScope, frozen=True, kw_only=True):
    """A BGPAdvertisement whose fields are valid; without ``peers`` all peers get its routes."""

    lengths: Mapping[int, int] = msgspec.field(default_factory=lambda: {4: 32, 6: 128})
    """The length of announced prefixes by IP version."""
    local_pref: int = 0
    communities: tuple[Community, ...] = ()
    peers: frozenset[str] = frozenset()


class RouterPeer(msgspec.Struct, frozen=True, kw_only=True):
    """A BGPPeer whose fields are valid: sessions of the selected nodes with a router."""

    name: str
    address: Address
    """Unspecified (``::``) with an ``interface``."""
    interface: str = ""
    """The device behind which the router is, whose address is not known."""
    port: int = 179
    my_as: int
    peer_as: int
    """0: any but the own one."""
    source: Address | None = None
    hold_s: int = 90
    keepalive_s: int = 30
    connect_retry_s: int = 10
    router_id: str = ""
    node_selectors: tuple[LabelSelector, ...] = ()
    password: str = ""
    bfd: BfdTimes | None = None
    keeps_routes: bool = False
    is_far: bool = False
    vrf: str = ""
    has_both_families: bool = False
    """Whether the session carries routes of both families."""

    @property
    def families(self) -> frozenset[int]:
        """The IP versions of the routes that the session carries."""
        return frozenset((4, 6)) if self.has_both_families else frozenset((self.address.version,))

    def has_node(self, node: Node) -> bool:
        """Whether a node has the session."""
        labels = node.metadata.labels
        return not self.node_selectors or any(item.matches(labels) for item in self.node_selectors)

    def session(self, own: Mapping[int, Address], rules: Iterable[RouteRule]) -> BgpSession | None:
        """The session of a node with these addresses by IP version; nothing is accepted from the router.

        None where the node has no address of the router's family.
        """
        if self.interface:
            return self._unnumbered(tuple(rules))
        version: Literal[4, 6] = 4 if self.address.version == 4 else 6
        local, other = own.get(version), own.get(10 - version)
        if local is None:
            return None
        exports: dict[int, list[RouteRule]] = {4: [], 6: []}
        for rule in rules:
            exports[rule.version].append(rule)
        second = None
        if self.has_both_families and other is not None:
            exported = tuple(exports[other.version])
            second = SecondFamily(version=6 if version == 4 else 4, next_hop=other, exports=exported)
        name = f"router_{self.address}{f'_{self.vrf}' if self.vrf else ''}"
        return replace(
            self._session(name, self.source or local),
            has_source=not self.vrf or self.source is not None,
            vrf=self.vrf,
            local_port=LISTEN_PORT,
            remote_port=self.port,
            on_link=not self.is_far,
            imports=(RouteRule(version=version, accept=False),),
            exports=tuple(exports[version]),
            second=second,
        )

    def _unnumbered(self, rules: tuple[RouteRule, ...]) -> BgpSession:
        """The session with a router that opens it, at the port that every router knows."""
        exports = tuple(rule for rule in rules if rule.version == 4)
        return replace(
            self._session(f"router_{self.interface}", self.address),
            has_source=False,
            interface=self.interface,
            waits=True,
            imports=(RouteRule(version=6, accept=False),),
            exports=tuple(rule for rule in rules if rule.version == 6),
            second=SecondFamily(version=4, next_hop=None, exports=exports),
        )

    def _session(self, name: str, local: Address) -> BgpSession:
        """The settings that a session has whether the router's address is known or not."""
        return BgpSession(
            name=re.sub(r"\W", "_", name, flags=re.ASCII),
            peer=f"BGPPeer {self.name}",
            local=local,
            local_as=self.my_as,
            remote=self.address,
            remote_as=self.peer_as,
            password=self.password,
            bfd=self.bfd is not None,
            bfd_times=self.bfd,
            hold_s=self.hold_s,
            keepalive_s=self.keepalive_s,
            connect_retry_s=self.connect_retry_s,
            keeps_routes=self.keeps_routes,
            router_id=self.router_id,
        )


LISTEN_PORT = 1790
"""Where the engine listens when it runs for load balancers alone, beside other programs that speak BGP on the node."""


class PasswordSecrets(msgspec.Struct, frozen=True):
    """The Secrets of the only namespace in which passwords are read."""

    namespace: str
    find: Callable[[str], Secret | None]
    """The Secret with a name, None for none. Raises: ConfigError while it is not readable."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What other objects refer to by name."""

    communities: Mapping[str, Community] = {}
    profiles: Mapping[str, BfdTimes] = {}
    secrets: PasswordSecrets | None = None
    """None: passwords do not matter, as for explanations."""


def read_each(
    objects: Iterable[Any], last_good: Mapping[str, T], parse: Callable[[Any], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """The values by name, and the problems of objects that are wrong, which keep their form in ``last_good``."""
    values, problems = {}, {}
    for item in sorted(objects, key=lambda item: str(item.metadata.name)):
        name = item.metadata.name
        try:
            values[name] = parse(item)
        except ConfigError as problem:
            problems[name] = str(problem)
            if name in last_good:
                values[name] = last_good[name]
    return values, problems


def read_communities(item: MetalLbCommunity) -> dict[str, Community]:
    """The names of a Community object.

    Raises: ConfigError naming the field.
    """
    source = f"Community {item.metadata.name}"
    names = {}
    for index, alias in enumerate(item.spec.communities):
        if not alias.name:
            raise ConfigError(source, f"spec.communities[{index}].name", "is empty; expected a name")
        names[alias.name] = _community(source, f"spec.communities[{index}].value", alias.value)
    return names


def read_profile(item: BfdProfile) -> BfdTimes:
    """The times of a BFDProfile.

    Raises: ConfigError naming the field.
    """
    spec, source = item.spec, f"BFDProfile {item.metadata.name}"
    if spec.echo_mode:
        raise ConfigError(source, "spec.echoMode", "true is not supported; leave it out")
    if spec.minimum_ttl is not None:
        raise ConfigError(source, "spec.minimumTtl", f"{spec.minimum_ttl} is not supported; leave it out")
    bounds = (("receiveInterval", spec.receive_interval), ("transmitInterval", spec.transmit_interval))
    for field, value in bounds:
        _check(source, f"spec.{field}", value, 10, 60000)
    _check(source, "spec.detectMultiplier", spec.detect_multiplier, 2, 255)
    return BfdTimes(
        receive_ms=spec.receive_interval or 300,
        transmit_ms=spec.transmit_interval or 300,
        multiplier=spec.detect_multiplier or 3,
        passive=spec.passive_mode,
    )


def read_advertisement(item: BgpAdvertisement, names: Vocabulary) -> BgpScope:
    """The values of a BGPAdvertisement.

    Raises: ConfigError naming the field.
    """
    spec, source = item.spec, f"BGPAdvertisement {item.metadata.name}"
    check_selectors(source, "spec.ipAddressPoolSelectors", spec.ip_address_pool_selectors)
    check_selectors(source, "spec.nodeSelectors", spec.node_selectors)
    check_selectors(source, "spec.serviceSelectors", spec.service_selectors)
    _check(source, "spec.aggregationLength", spec.aggregation_length, 1, 32)
    _check(source, "spec.aggregationLengthV6", spec.aggregation_length_v6, 1, 128)
    communities = []
    for index, text in enumerate(spec.communities):
        alias = names.communities.get(text)
        communities.append(alias if alias is not None else _community(source, f"spec.communities[{index}]", text))
    return BgpScope(
        name=item.metadata.name,
        pools=frozenset(spec.ip_address_pools),
        pool_selectors=spec.ip_address_pool_selectors,
        node_selectors=spec.node_selectors,
        service_selectors=spec.service_selectors,
        lengths={4: spec.aggregation_length, 6: spec.aggregation_length_v6},
        local_pref=_check(source, "spec.localPref", spec.local_pref, 0, (1 << 32) - 1) or 0,
        communities=tuple(communities),
        peers=frozenset(spec.peers),
    )


def read_peer(item: MetalLbPeer, names: Vocabulary) -> RouterPeer:
    """The values of a BGPPeer.

    Raises: ConfigError naming the field.
    """
    spec, source = item.spec, f"BGPPeer {item.metadata.name}"
    _refuse_unsupported(source, item)
    address = IPv6Address(0) if spec.interface else parse_address(spec.peer_address)
    if address is None:
        raise ConfigError(source, "spec.peerAddress", f"{spec.peer_address!r}: expected an address")
    local = parse_address(spec.source_address) if spec.source_address else None
    if spec.source_address and (local is None or local.version != address.version):
        raise ConfigError(
            source, "spec.sourceAddress", f"{spec.source_address!r}: expected an IPv{address.version} address"
        )
    own_id = parse_address(spec.router_id) if spec.router_id else None
    if spec.router_id and (own_id is None or own_id.version != 4):
        raise ConfigError(source, "spec.routerID", f"{spec.router_id!r}: expected the form of an IPv4 address")
    if spec.bfd_profile and spec.bfd_profile not in names.profiles:
        raise ConfigError(source, "spec.bfdProfile", f"there is no valid BFDProfile {spec.bfd_profile}")
    password = _password(source, item, names.secrets)
    check_selectors(source, "spec.nodeSelectors", spec.node_selectors)
    hold_s, keepalive_s = _times(source, spec.hold_time, spec.keepalive_time)
    return RouterPeer(
        name=item.metadata.name,
        address=address,
        interface=spec.interface,
        port=_check(source, "spec.peerPort", spec.peer_port, 1, 65535) or 179,
        my_as=_check(source, "spec.myASN", spec.my_asn, 1, (1 << 32) - 1) or 0,
        peer_as=_peer_as(source, item),
        source=local,
        hold_s=hold_s,
        keepalive_s=keepalive_s,
        connect_retry_s=_connect_s(source, spec.connect_time),
        router_id=spec.router_id,
        node_selectors=spec.node_selectors,
        password=password,
        bfd=names.profiles.get(spec.bfd_profile),
        keeps_routes=spec.enable_graceful_restart,
        is_far=spec.ebgp_multi_hop,
        vrf=spec.vrf,
        has_both_families=spec.dual_stack_address_family or bool(spec.interface),
    )


def _refuse_unsupported(source: str, item: MetalLbPeer) -> None:
    """Refuses what the engine cannot do, and fields that contradict each other."""
    spec = item.spec
    if spec.interface:
        _check_device(source, "spec.interface", spec.interface)
        excluded = (
            ("peerAddress", spec.peer_address),
            ("sourceAddress", spec.source_address),
            ("vrf", spec.vrf),
            ("ebgpMultiHop", spec.ebgp_multi_hop),
            ("peerPort", spec.peer_port not in (None, 179)),
        )
        for field, value in excluded:
            if value:
                raise ConfigError(source, f"spec.{field}", "has no meaning with interface; leave one of them out")
    if spec.vrf:
        _check_device(source, "spec.vrf", spec.vrf)
    if spec.disable_mp and spec.dual_stack_address_family:
        raise ConfigError(source, "spec.disableMP", "true contradicts dualStackAddressFamily; leave one of them out")


def _check_device(source: str, path: str, name: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,15}", name, re.ASCII):
        raise ConfigError(source, path, f"{name!r}: expected the name of a device")


def _password(source: str, item: MetalLbPeer, secrets: PasswordSecrets | None) -> str:
    spec, reference = item.spec, item.spec.password_secret
    if not reference.name:
        check_password(source, "spec.password", spec.password)
        return spec.password
    path = "spec.passwordSecret"
    if spec.password:
        raise ConfigError(source, path, "expected either password or passwordSecret")
    if secrets is None:
        return ""
    if reference.namespace not in ("", secrets.namespace):
        problem = f"{reference.namespace}: expected {secrets.namespace}, or nothing"
        raise ConfigError(source, f"{path}.namespace", problem)
    where = f"Secret {secrets.namespace}/{reference.name}"
    try:
        secret = secrets.find(reference.name)
    except ConfigError as problem:
        raise ConfigError(source, path, str(problem)) from problem
    if secret is None:
        raise ConfigError(source, path, f"there is no {where}")
    if secret.type != PASSWORD_TYPE:
        raise ConfigError(source, path, f"{where} has the type {secret.type or 'Opaque'}: expected {PASSWORD_TYPE}")
    password = secret.text("password")
    if not password:
        raise ConfigError(source, path, f"{where} has no text at the key password")
    check_password(source, f"{path}: {where}: key password", password)
    return password


def _peer_as(source: str, item: MetalLbPeer) -> int:
    spec = item.spec
    if bool(spec.peer_asn) == bool(spec.dynamic_asn):
        raise ConfigError(source, "spec.peerASN", "expected either peerASN or dynamicASN")
    if spec.dynamic_asn not in ("", "internal", "external"):
        raise ConfigError(source, "spec.dynamicASN", f"{spec.dynamic_asn!r}: expected internal or external")
    is_internal = spec.dynamic_asn == "internal" or spec.peer_asn == spec.my_asn
    if spec.ebgp_multi_hop and is_internal:
        raise ConfigError(source, "spec.ebgpMultiHop", "is for a router with another autonomous system number")
    if spec.dynamic_asn:
        return spec.my_asn if is_internal else 0
    return _check(source, "spec.peerASN", spec.peer_asn, 1, (1 << 32) - 1) or 0


def _connect_s(source: str, text: str) -> int:
    seconds = round(parse_seconds(source, "spec.connectTime", text)) if text else 10
    return _check(source, "spec.connectTime", seconds, 1, 65535) or seconds


def _times(source: str, hold: str, keepalive: str) -> tuple[int, int]:
    hold_s = round(parse_seconds(source, "spec.holdTime", hold)) if hold else 90
    keepalive_s = round(parse_seconds(source, "spec.keepaliveTime", keepalive)) if keepalive else max(1, hold_s // 3)
    _check(source, "spec.holdTime", hold_s, _LEAST_HOLD_S, _MOST_HOLD_S)
    if not 1 <= keepalive_s <= hold_s:
        raise ConfigError(source, "spec.keepaliveTime", f"{keepalive_s} s: expected 1 s to holdTime, {hold_s} s")
    return hold_s, keepalive_s


def _check(source: str, path: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and not least <= value <= most:
        raise ConfigError(source, path, f"{value}: expected {least} to {most}")
    return value


def _community(source: str, path: str, text: str) -> Community:
    try:
        return community(text.removeprefix("large:"))
    except ValueError as problem:
        raise ConfigError(source, path, f"{problem}, or the name in a Community") from problem
