"""The section ``routing`` of a configuration: common settings, and the options of each backend.

The options of all backends are read and checked, whichever backend is configured: while a cluster changes its backend,
a node uses several. A key may be dotted, ``wireguard.port``, as in the ConfigMap of a cluster's settings.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import ip_network
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.document import convert
from podwire.routing.backend import Backend, BackendOptions, check_range
from podwire.routing.nodes import Network
from podwire.routing.podnetworks import PodNetworks
from podwire.routing.registry import BACKENDS, DEFAULT
from podwire.runtime.registry import Registry


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this node's pods reach those of other nodes.

    ``backend`` is a name of the registry. ``direct_routing`` sends packets to peers of the same subnet without
    encapsulation. ``mtu`` is that of the pods in bytes, 0 means as large as the underlay allows. ``masquerade`` gives
    traffic that leaves the cluster the node's address, by rules of the form ``masquerade_rules``; destinations in
    ``non_masquerade_cidrs`` see the pods' own addresses. ``self_test``: the paths to all peers are tested.
    ``tx_checksum`` sets the checksum offload of tunnels; ``auto`` leaves it as it is until a test shows wrong
    checksums. ``options`` are those of the backends by name; one that is not in there has its defaults.
    """

    backend: str = DEFAULT
    direct_routing: bool = False
    mtu: int = 0
    masquerade: bool = True
    masquerade_rules: Literal["nftables", "iptables"] = "nftables"
    non_masquerade_cidrs: tuple[str, ...] = ()
    self_test: bool = True
    tx_checksum: Literal["auto", "on", "off"] = "auto"
    options: Mapping[str, BackendOptions] = {}

    @property
    def exceptions(self) -> tuple[Network, ...]:
        """``non_masquerade_cidrs`` as values."""
        return tuple(map(ip_network, self.non_masquerade_cidrs))

    @property
    def pod_networks(self) -> PodNetworks:
        """The pod networks in the options of whichever backend has some."""
        every = (options.pod_networks for options in self.options.values())
        return next((networks for networks in every if networks.networks), PodNetworks())

    def check_overlap(self, source: str, reserved: Mapping[str, Iterable[Network]]) -> None:
        """Checks that no range of a pod network overlaps with ``reserved`` ranges, which are by their names.

        Raises: ConfigError naming the field.
        """
        for name, options in self.options.items():
            options.pod_networks.check_overlap(source, f"routing.{name}", reserved)

    def load(self, registry: Registry[type[Backend]] = BACKENDS) -> dict[str, Backend]:
        """All backends of the registry by name, each with its options."""
        loaded = {name: registry.load(name) for name in registry}
        return {name: kind(self.options.get(name) or kind.options()) for name, kind in loaded.items()}

    def udp_ports(self, registry: Registry[type[Backend]] = BACKENDS) -> tuple[int, ...]:
        """The ports at which nodes decapsulate packets, for all backends."""
        return tuple(sorted({port for backend in self.load(registry).values() for port in backend.udp_ports}))

    def fields(self) -> dict[str, Any]:
        """The settings in the form of the section ``routing``, without secrets."""
        shared = {name: getattr(self, field) for name, field in _SHARED.items()}
        for options in self.options.values():
            shared |= options.shown()
        return shared


_SHARED = {
    "backend": "backend",
    "directRouting": "direct_routing",
    "mtu": "mtu",
    "masquerade": "masquerade",
    "masqueradeRules": "masquerade_rules",
    "nonMasqueradeCIDRs": "non_masquerade_cidrs",
    "selfTest": "self_test",
    "txChecksum": "tx_checksum",
}
"""Keys of the section that belong to no backend, and their fields."""


def parse_settings(
    document: Mapping[str, Any], source: str, registry: Registry[type[Backend]] = BACKENDS
) -> RoutingSettings:
    """The settings in a section ``routing``.

    Raises: ConfigError naming the source and the field.
    """
    kinds = {name: registry.load(name).options for name in registry}
    section: Any = convert(_nested(document), _section_type(tuple(kinds.values())), source, "routing")
    options = {name: kind(**_take(section, kind.__struct_fields__)) for name, kind in kinds.items()}
    settings = RoutingSettings(**_take(section, _SHARED.values()), options=options)
    registry.check(settings.backend, source)
    if settings.mtu:
        check_range(source, "routing.mtu", settings.mtu, 1280, 65535)
    for index, cidr in enumerate(settings.non_masquerade_cidrs):
        try:
            ip_network(cidr)
        except ValueError as failure:
            raise ConfigError(source, f"routing.nonMasqueradeCIDRs[{index}]", str(failure)) from failure
    for options_of in options.values():
        options_of.check(source)
    if settings.direct_routing and kinds[settings.backend].encrypts:
        problem = f"{settings.backend} encrypts all packets between nodes, and direct routing would send them in clear"
        raise ConfigError(source, "routing.directRouting", f"{problem}: set it to false")
    return settings


def _take(section: Any, fields: Iterable[str]) -> dict[str, Any]:
    return {field: getattr(section, field) for field in fields}


def _nested(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with dotted keys converted to nested objects."""
    nested: dict[str, Any] = {}
    for key, value in document.items():
        *path, field = str(key).split(".")
        inner = nested
        for step in path:
            inner[step] = dict(inner[step]) if isinstance(inner.get(step), Mapping) else {}
            inner = inner[step]
        inner[field] = value
    return nested


@cache
def _section_type(kinds: tuple[type[BackendOptions], ...]) -> type[msgspec.Struct]:
    """The type of the whole section: the shared fields and those of all backends.

    Raises: TypeError when two backends have an option of the same name.
    """
    keys = {field: key for key, field in _SHARED.items()}
    shared = [field for field in msgspec.structs.fields(RoutingSettings) if field.name in keys]
    every = {
        field.name: (field.name, field.type, msgspec.field(default=field.default, name=keys[field.name]))
        for field in shared
    }
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            if field.name in every:
                raise TypeError(f"two routing backends have the option {field.name!r}")
            every[field.name] = (field.name, field.type, field.default)
    return msgspec.defstruct(
        "RoutingSection", every.values(), rename="camel", kw_only=True, frozen=True, forbid_unknown_fields=True
    )
