"""What a Service asks of the pools (pure).

The annotations are MetalLB's: ``metallb.io/loadBalancerIPs`` (addresses, separated by commas),
``metallb.io/address-pool`` and ``metallb.io/allow-shared-ip``; their older prefix ``metallb.universe.tf`` is read too.
``spec.loadBalancerIP`` requests one address.
"""

from collections.abc import Iterable

import msgspec

from podwire.errors import ConfigError
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.model.meta import key_of
from podwire.model.service import Service

PREFIXES = ("metallb.io/", "metallb.universe.tf/")
ADDRESSES, POOL, SHARING = "loadBalancerIPs", "address-pool", "allow-shared-ip"
FROM_POOL = "metallb.io/ip-allocated-from-pool"
"""Service annotation: the pool of its addresses. Written by the controller of addresses; read by agents and ``why``."""


class AddressRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A Service of type LoadBalancer as the allocator sees it."""

    key: str
    """``namespace/name``."""
    uid: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    families: tuple[int, ...]
    """The IP versions that it must have, in order."""
    optional: tuple[int, ...] = ()
    """The version that it would like to have besides (``PreferDualStack``)."""
    addresses: tuple[Address, ...] = ()
    pool: str = ""
    sharing: str = ""
    ports: frozenset[tuple[str, int]] = frozenset()
    backend: str = ""
    """The selector of a Service with ``externalTrafficPolicy: Local``; empty with the policy Cluster."""


def read_request(service: Service) -> AddressRequest:
    """The request of a Service.

    Raises: ConfigError naming the Service and the field.
    """
    spec, meta, key = service.spec, service.metadata, key_of(service.metadata)
    source = f"Service {key}"
    addresses, path = _addresses(source, service)
    families, optional = _families(spec.ip_families, spec.ip_family_policy, (spec.cluster_ip, *spec.cluster_ips))
    if addresses:
        versions = [address.version for address in addresses]
        if len(set(versions)) < len(versions):
            raise ConfigError(source, path, "has two addresses of one family; expected at most one of each")
        allowed = {*families, *optional}
        stray = next((address for address in addresses if address.version not in allowed), None)
        if stray is not None:
            raise ConfigError(source, path, f"{stray} is IPv{stray.version}, which is not in spec.ipFamilies")
        missing = next((version for version in families if version not in versions), None)
        if missing is not None and spec.ip_family_policy == "RequireDualStack":
            raise ConfigError(source, path, f"has no IPv{missing} address, which spec.ipFamilies asks for")
        families, optional = tuple(versions), ()
    local = spec.external_traffic_policy == "Local"
    return AddressRequest(
        key=key,
        uid=meta.uid,
        namespace=meta.namespace,
        labels=meta.labels,
        families=families,
        optional=optional,
        addresses=addresses,
        pool=annotation(meta.annotations, POOL),
        sharing=annotation(meta.annotations, SHARING),
        ports=frozenset((port.protocol, port.port) for port in spec.ports),
        backend=",".join(f"{k}={v}" for k, v in sorted(spec.selector.items())) or key if local else "",
    )


def annotation(annotations: dict[str, str], name: str) -> str:
    """The value of one of MetalLB's annotations; empty without it."""
    return next((annotations[prefix + name] for prefix in PREFIXES if prefix + name in annotations), "")


def _addresses(source: str, service: Service) -> tuple[tuple[Address, ...], str]:
    """The requested addresses, and the field that requests them."""
    listed = annotation(service.metadata.annotations, ADDRESSES)
    single = service.spec.load_balancer_ip
    path = f"metadata.annotations[metallb.io/{ADDRESSES}]"
    if listed and single:
        raise ConfigError(source, "spec.loadBalancerIP", f"cannot be used together with the annotation {ADDRESSES}")
    if not listed and not single:
        return (), ""
    texts: Iterable[str] = listed.split(",") if listed else (single,)
    path = path if listed else "spec.loadBalancerIP"
    addresses = []
    for text in texts:
        address = parse_address(text)
        if address is None:
            raise ConfigError(source, path, f"{text.strip()!r}: expected an address")
        addresses.append(address)
    return tuple(addresses), path


def _families(
    families: tuple[str, ...], policy: str | None, cluster_ips: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The required and the optional IP versions; without ``ipFamilies`` those of the cluster addresses."""
    versions = tuple(4 if family == "IPv4" else 6 for family in families)
    if not versions:
        known = (parse_address(text) for text in cluster_ips)
        versions = tuple(dict.fromkeys(address.version for address in known if address is not None)) or (4,)
    if policy == "PreferDualStack":
        return versions[:1], versions[1:]
    return versions, ()
