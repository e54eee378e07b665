"""Allocates cluster addresses and node ports to Services, and refuses invalid requests for them.

The allocator tracks only what stored Services hold: :meth:`ServiceAllocator.observe` gets every stored change (and
every Service at the start). :meth:`ServiceAllocator.assign` completes a Service before it is stored, without a
reservation. Both run in one turn of the event loop, so no lock is needed, and a failed write leaks nothing.

Addresses are chosen from the upper part of a range first, so that static addresses of the lower part stay free:
the band is min(max(16, size/16), 256) addresses (KEP-3070). Node ports likewise: min(max(16, size/32), 128)
ports of the range are kept for explicit use (KEP-3668). Within a band the choice continues after the last allocated
value, so that a freed address is not given to another Service at once.

Sources: ``pkg/registry/core/service/storage/alloc.go``, ``pkg/registry/core/service/portallocator``.
Memory: one dictionary entry per address and per port. A choice is O(1) unless the range is nearly full.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.addresses import AddressPool, static_band, turn
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.validate import causes
from podwire.errors import ApiError

Json = dict[str, Any]

_HEADLESS = "None"
_WITH_ADDRESSES = ("ClusterIP", "NodePort", "LoadBalancer")
_PORT_ALLOCATED = "provided port is already allocated"


class NodePortRange:
    """Node ports. One number may serve different protocols of one Service, never two Services."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._owners: dict[int, str] = {}
        self._middle = first + static_band(last - first + 1, 32, 128)
        self._next = self._middle

    def take(self, port: int, owner: str) -> None:
        """Record a port of a stored Service."""
        self._owners[port] = owner
        self._next = port + 1

    def drop(self, port: int, owner: str) -> None:
        """Forget a port."""
        if self._owners.get(port) == owner:
            del self._owners[port]

    def problem(self, port: int, owner: str) -> str:
        """Why this port cannot be given to ``owner``; empty where it can."""
        if not self.first <= port <= self.last:
            valid = f"The range of valid ports is {self.first}-{self.last}"
            return f"provided port is not in the valid range. {valid}"
        current_owner = self._owners.get(port)
        return _PORT_ALLOCATED if current_owner is not None and current_owner != owner else ""

    def choose(self, used: set[int]) -> int | None:
        """The next free port that is not in ``used``, None where there is none."""
        for port in turn(self.first, self._middle, self.last, self._next):
            if port not in self._owners and port not in used:
                return port
        return None


def key(service: Json) -> str:
    """``namespace/name``."""
    meta = service.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


def _kind_of(spec: Json) -> str:
    return str(spec.get("type") or "ClusterIP")


def cluster_ips(spec: Json) -> list[str]:
    """The addresses a Service holds, without ``None``."""
    if _kind_of(spec) not in _WITH_ADDRESSES:
        return []
    addresses = spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else [])
    return [ip for ip in addresses if ip and ip != _HEADLESS]


def _held_ports(spec: Json) -> set[int]:
    ports = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
    return ports | {spec["healthCheckNodePort"]} if spec.get("healthCheckNodePort") else ports


def _has_node_ports(spec: Json) -> bool:
    return _kind_of(spec) == "NodePort" or (
        _kind_of(spec) == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
    )


def _needs_health_port(spec: Json) -> bool:
    return _kind_of(spec) == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class ServiceAllocator:
    """The addresses and node ports of one cluster.

    The first CIDR is of the primary family; a family may have several.
    """

    def __init__(self, cidrs: Sequence[str], node_ports: tuple[int, int] = (30000, 32767)) -> None:
        families: dict[str, list[str]] = {}
        for cidr in cidrs:
            families.setdefault("IPv6" if ":" in cidr else "IPv4", []).append(cidr)
        self._ranges = {family: AddressPool(networks) for family, networks in families.items()}
        self._ports = NodePortRange(*node_ports)

    def observe(self, old: Json | None, new: Json | None) -> None:
        """Follow a stored change: created (no ``old``), updated, or deleted (no ``new``)."""
        for service, keep in ((old, False), (new, True)):
            if service is None:
                continue
            owner, spec = key(service), service.get("spec") or {}
            for ip in cluster_ips(spec):
                held = self._ranges.get(f"IPv{ip_address(ip).version}")
                if held is not None:
                    (held.take if keep else held.drop)(str(ip_address(ip)), owner)
            for port in _held_ports(spec):
                (self._ports.take if keep else self._ports.drop)(port, owner)

    def hold(self, ip: str, owner: str) -> None:
        """Record an address that something other than a Service uses."""
        pool = self._ranges.get(f"IPv{ip_address(ip).version}")
        if pool is not None:
            pool.take(ip, owner)

    def release(self, ip: str, owner: str) -> None:
        """Forget such an address."""
        pool = self._ranges.get(f"IPv{ip_address(ip).version}")
        if pool is not None:
            pool.drop(ip, owner)

    def assign(self, new: Json, old: Json | None = None) -> Json:
        """The Service with families, addresses and node ports; the arguments are left as they were.

        ``new`` has its defaults. On an update, what ``new`` leaves out is taken over from ``old`` where its
        type still has it, and what its type does not have is removed.
        Raises: Invalid where a wanted address or port is not available, or the families contradict each other;
        ApiError 500 where a range is full.
        """
        spec: Json = dict(new.get("spec") or {})
        spec["ports"] = [dict(port) for port in spec.get("ports") or ()]
        if not spec["ports"]:
            spec.pop("ports")
        before: Json = (old or {}).get("spec") or {}
        owner = key(new)
        if before:
            _take_over(spec, before)
        wrong = self._set_families(spec, before) or self._set_addresses(spec, before, owner)
        wrong += self._set_ports(spec, owner, new=not before)
        if before:
            _drop_foreign(spec, before)
        elif _kind_of(spec) == "ExternalName":
            spec.pop("internalTrafficPolicy", None)
        if wrong:
            name = (new.get("metadata") or {}).get("name", "")
            raise failures.invalid(BY_KIND["", "v1", "Service"], name, wrong)
        return {**new, "spec": spec}

    # -- families

    def _set_families(self, spec: Json, before: Json) -> list[Cause]:
        """Set ipFamilyPolicy and ipFamilies from the request, the given addresses, and the families of the cluster."""
        if _kind_of(spec) == "ExternalName":
            return []
        wrong = self._check_families(spec)
        if wrong:
            return wrong
        ips = [ip for ip in spec.get("clusterIPs") or () if ip != _HEADLESS]
        families = list(spec.get("ipFamilies") or ())
        families += [f"IPv{ip_address(ip).version}" for ip in ips[len(families) :]]
        policy = spec.get("ipFamilyPolicy")
        if policy is None:
            selectorless = spec.get("clusterIP") == _HEADLESS and not spec.get("selector") and not families
            dual = len(families) == 2 or len(ips) == 2
            policy = "RequireDualStack" if dual or (selectorless and len(self._ranges) == 2) else "SingleStack"
        if policy == "SingleStack" and len(families) == 2 and before:
            families = families[:1]
            spec["clusterIPs"] = (spec.get("clusterIPs") or [])[:1]
        order = [*families, *(name for name in self._ranges if name not in families)]
        family_count = 1 if policy == "SingleStack" else 2
        if policy == "RequireDualStack" and len(self._ranges) < 2:
            return [
                causes.invalid("spec.ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services")
            ]
        spec["ipFamilyPolicy"] = policy
        spec["ipFamilies"] = order[: max(family_count, len(families))] if len(self._ranges) > 1 else order[:1]
        if policy == "SingleStack" and len(spec["ipFamilies"]) > 1:
            detail = "may only hold up to 1 value when `ipFamilyPolicy` is SingleStack"
            return [causes.invalid("spec.ipFamilies", spec["ipFamilies"], detail)]
        return []

    def _check_families(self, spec: Json) -> list[Cause]:
        """The problems of the families and addresses in the request."""
        wrong: list[Cause] = []
        families = spec.get("ipFamilies") or []
        for index, family in enumerate(families):
            path = f"spec.ipFamilies[{index}]"
            if family not in ("IPv4", "IPv6"):
                wrong.append(causes.unsupported(path, family, ("IPv4", "IPv6")))
            elif family not in self._ranges:
                wrong.append(causes.invalid(path, family, "not configured on this cluster"))
            elif family in families[:index]:
                wrong.append(causes.duplicate(path, family))
        return wrong or _check_ips(spec)

    # -- addresses

    def _set_addresses(self, spec: Json, before: Json, owner: str) -> list[Cause]:
        """Set clusterIP and clusterIPs."""
        if _kind_of(spec) not in _WITH_ADDRESSES:
            return []
        asked = list(spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else []))
        if asked[:1] == [_HEADLESS]:
            spec["clusterIP"], spec["clusterIPs"] = _HEADLESS, [_HEADLESS]
            return []
        held = set(cluster_ips(before))
        out: list[str] = []
        for index, family in enumerate(spec.get("ipFamilies") or ()):
            addresses = self._ranges[family]
            requested = asked[index] if index < len(asked) else ""
            if not requested:
                requested = addresses.choose() or ""
                if not requested:
                    raise ApiError(500, "InternalError", "failed to allocate a serviceIP: range is full")
            elif requested not in held:
                problem = addresses.problem(requested, owner) if _is_ip(requested) else "must be a valid IP address"
                if problem:
                    text = f"failed to allocate IP {requested}: {problem}"
                    return [causes.invalid("spec.clusterIPs", asked, text)]
            out.append(requested)
        if out:
            spec["clusterIP"], spec["clusterIPs"] = out[0], out
        return []

    # -- node ports

    def _set_ports(self, spec: Json, owner: str, *, new: bool) -> list[Cause]:
        """Set node ports and the health-check port where the type has them.

        In a new Service a number serves several protocols of one port, not several ports.
        """
        wrong: list[Cause] = []
        chosen: dict[int, list[tuple[str, int]]] = {}
        explicit = _kind_of(spec) in ("NodePort", "LoadBalancer")
        for index, port in enumerate(spec.get("ports") or ()) if explicit else ():
            node_port = port.get("nodePort")
            if node_port:
                other_numbers = {number for _, number in chosen.get(node_port, ())} - {port.get("port", 0)}
                problem = self._ports.problem(node_port, owner) or (_PORT_ALLOCATED if new and other_numbers else "")
                if problem:
                    path = f"spec.ports[{index}].nodePort"
                    wrong.append(causes.invalid(path, node_port, problem))
                chosen.setdefault(node_port, []).append((port.get("protocol", "TCP"), port.get("port", 0)))
        used = set(chosen)
        for port in (spec.get("ports") or ()) if _has_node_ports(spec) else ():
            if not port.get("nodePort"):
                port["nodePort"] = self._same_number(port, chosen) or self._free_port(used)
                pair = (port.get("protocol", "TCP"), port.get("port", 0))
                chosen.setdefault(port["nodePort"], []).append(pair)
                used.add(port["nodePort"])
        if _needs_health_port(spec):
            wrong += self._set_health_port(spec, used, owner)
        return wrong

    def _set_health_port(self, spec: Json, used: set[int], owner: str) -> list[Cause]:
        requested = spec.get("healthCheckNodePort")
        if not requested:
            spec["healthCheckNodePort"] = self._free_port(used)
            return []
        problem = self._ports.problem(requested, owner) or (_PORT_ALLOCATED if requested in used else "")
        if not problem:
            return []
        text = f"failed to allocate requested HealthCheck NodePort {requested}: {problem}"
        return [causes.invalid("spec.healthCheckNodePort", requested, text)]

    @staticmethod
    def _same_number(port: Json, chosen: dict[int, list[tuple[str, int]]]) -> int | None:
        """The node port of another protocol on the same Service port, as DNS over TCP and UDP has it."""
        for number, pairs in chosen.items():
            protocols = {protocol for protocol, _ in pairs}
            if port.get("protocol", "TCP") not in protocols and pairs[0][1] == port.get("port"):
                return number
        return None

    def _free_port(self, used: Iterable[int]) -> int:
        port = self._ports.choose(set(used))
        if port is None:
            raise ApiError(500, "InternalError", "failed to allocate a nodePort: range is full")
        return port


def _check_ips(spec: Json) -> list[Cause]:
    """The problems of clusterIP and clusterIPs, without the families."""
    ips = spec.get("clusterIPs") or []
    cluster_ip = spec.get("clusterIP")
    if cluster_ip and not ips:
        ips = spec["clusterIPs"] = [cluster_ip]
    elif ips and not cluster_ip:
        return [causes.required("spec.clusterIP", "`clusterIP` must be set when `clusterIPs` is set")]
    elif ips and cluster_ip != ips[0]:
        return [causes.invalid("spec.clusterIPs", ips, "first value must match `clusterIP`")]
    if len(ips) > 2:
        return [causes.invalid("spec.clusterIPs", ips, "may only hold up to 2 values")]
    wrong = [
        causes.invalid(f"spec.clusterIPs[{index}]", ip, "must be a valid IP address")
        for index, ip in enumerate(ips)
        if ip != _HEADLESS and not _is_ip(ip)
    ]
    if len(ips) == 2 and _HEADLESS in ips:
        wrong.append(causes.invalid("spec.clusterIPs", ips, "'None' must be the first and only value"))
    return wrong or _check_matches(spec, ips)


def _check_matches(spec: Json, ips: Sequence[str]) -> list[Cause]:
    """The problems of addresses that are not of the family at the same index."""
    families = spec.get("ipFamilies") or []
    return [
        causes.invalid(
            f"spec.clusterIPs[{index}]", ip, f"expected an {family} value as indicated by `ipFamilies[{index}]`"
        )
        for index, (ip, family) in enumerate(zip(ips, families, strict=False))
        if ip != _HEADLESS and f"IPv{ip_address(ip).version}" != family
    ]


def _take_over(spec: Json, before: Json) -> None:
    """Keep what an update leaves out, as ``patchAllocatedValues`` does."""
    now, was = _kind_of(spec), _kind_of(before)
    if now in _WITH_ADDRESSES and was in _WITH_ADDRESSES:
        _keep_addresses(spec, before)
        for field in ("ipFamilyPolicy", "ipFamilies"):
            if spec.get(field) is None and before.get(field) is not None:
                spec[field] = before[field]
        _narrow(spec, before)
    if now in ("NodePort", "LoadBalancer") and was in ("NodePort", "LoadBalancer"):
        _keep_node_ports(spec, before)
    if _needs_health_port(spec) and _needs_health_port(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort")


def _keep_addresses(spec: Json, before: Json) -> None:
    """Addresses that an update leaves out stay; where only ``clusterIP`` changes, ``clusterIPs`` follows."""
    cluster_ip = spec.get("clusterIP")
    if not cluster_ip and not spec.get("clusterIPs"):
        for field in ("clusterIP", "clusterIPs"):
            if before.get(field):
                spec[field] = before[field]
    elif cluster_ip != before.get("clusterIP"):
        if spec.get("clusterIPs") == before.get("clusterIPs"):
            spec["clusterIPs"] = [cluster_ip] if cluster_ip else None
    elif not spec.get("clusterIPs"):
        spec["clusterIPs"] = before.get("clusterIPs")


def _narrow(spec: Json, before: Json) -> None:
    """A change to SingleStack with unchanged lists drops the second family and address."""
    if spec.get("ipFamilyPolicy") == "SingleStack" != before.get("ipFamilyPolicy"):
        for field in ("ipFamilies", "clusterIPs"):
            if spec.get(field) == before.get(field):
                spec[field] = (spec.get(field) or [])[:1]


def _keep_node_ports(spec: Json, before: Json) -> None:
    """Ports that are the same Service port and protocol keep their node port."""
    old = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in before.get("ports") or ()}
    used = {port.get("nodePort") for port in spec.get("ports") or ()}
    for port in spec.get("ports") or ():
        known = old.get((port.get("protocol"), port.get("port")))
        if not port.get("nodePort") and known and known not in used:
            port["nodePort"] = known


def _drop_foreign(spec: Json, before: Json) -> None:
    """Remove what an update kept although its type does not have it, as ``dropTypeDependentFields`` does.

    What the client itself set to something new stays, for the validation to refuse.
    """
    kind = _kind_of(spec)
    if kind == "ExternalName":
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
            spec.pop(field, None)
    elif spec.get("externalName") == before.get("externalName"):
        spec.pop("externalName", None)
    if kind not in ("NodePort", "LoadBalancer"):
        _drop_node_ports(spec, before)
        if not spec.get("externalIPs"):
            spec.pop("externalTrafficPolicy", None)
    if kind != "LoadBalancer":
        for field in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            spec.pop(field, None)
    if not _needs_health_port(spec):
        spec.pop("healthCheckNodePort", None)


def _drop_node_ports(spec: Json, before: Json) -> None:
    """Remove node ports that did not change."""
    old = {port.get("nodePort") for port in before.get("ports") or ()}
    for port in spec.get("ports") or ():
        if port.get("nodePort") in old:
            port.pop("nodePort", None)
