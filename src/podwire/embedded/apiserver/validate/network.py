"""Checks of the network kinds: Service, endpoints, Ingress, NetworkPolicy.

The allocator checks what depends on the cluster's ranges: whether an address is free, and whether a port is in range.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.metadata import check_labels
from podwire.embedded.apiserver.validate.pods import PROTOCOLS, at_least, one_of
from podwire.embedded.apiserver.validate.workloads import check_selector

Json = dict[str, Any]

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_DAY_S = 86_400


def check_service(new: Json, old: Json | None) -> Iterator[Cause]:
    """A Service."""
    spec: Json = new.get("spec") or {}
    kind = spec.get("type")
    yield from one_of(kind, _TYPES, "spec.type")
    headless = spec.get("clusterIP") == "None"
    if not spec.get("ports") and kind != "ExternalName" and not headless:
        yield causes.required("spec.ports")
    yield from _service_ports(spec)
    yield from check_labels(spec.get("selector"), "spec.selector")
    yield from _service_type(spec, kind, headless=headless)
    yield from _service_affinity(spec)
    for field in ("externalTrafficPolicy", "internalTrafficPolicy"):
        yield from one_of(spec.get(field), ("Cluster", "Local"), f"spec.{field}")
    closeness = ("PreferClose", "PreferSameNode", "PreferSameZone")
    yield from one_of(spec.get("trafficDistribution"), closeness, "spec.trafficDistribution")
    for index, text in enumerate(spec.get("externalIPs") or ()):
        yield from _usable_ip(text, f"spec.externalIPs[{index}]")
    for index, text in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        if problem := names.cidr(text.strip()):
            yield causes.invalid(f"spec.loadBalancerSourceRanges[{index}]", text, problem)
    if old is not None:
        yield from _service_kept(spec, old.get("spec") or {})


def _service_type(spec: Json, kind: Any, *, headless: bool) -> Iterator[Cause]:
    if kind == "ExternalName":
        name = (spec.get("externalName") or "").removesuffix(".")
        if not name:
            yield causes.required("spec.externalName")
        elif problem := names.subdomain(name):
            yield causes.invalid("spec.externalName", name, problem)
        if spec.get("clusterIP"):
            detail = "may not be set for ExternalName services"
            yield causes.forbidden("spec.clusterIPs[0]", detail)
    if headless and kind in ("NodePort", "LoadBalancer"):
        detail = f"may not be set to 'None' for {kind} services"
        yield causes.invalid("spec.clusterIPs[0]", "None", detail)
    if kind in ("ClusterIP", "ExternalName"):
        for index, port in enumerate(spec.get("ports") or ()):
            if port.get("nodePort"):
                detail = f"may not be used when `type` is '{kind}'"
                yield causes.forbidden(f"spec.ports[{index}].nodePort", detail)
    if spec.get("externalTrafficPolicy") and kind == "ClusterIP" and not spec.get("externalIPs"):
        detail = "may only be set for externally-accessible services"
        yield causes.invalid("spec.externalTrafficPolicy", spec["externalTrafficPolicy"], detail)


def _service_affinity(spec: Json) -> Iterator[Cause]:
    yield from one_of(spec.get("sessionAffinity"), ("ClientIP", "None"), "spec.sessionAffinity")
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
    if spec.get("sessionAffinity") == "ClientIP" and not (isinstance(seconds, int) and 0 < seconds <= _DAY_S):
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield causes.invalid(path, seconds, f"must be greater than 0 and less than {_DAY_S}")


def _service_ports(spec: Json) -> Iterator[Cause]:
    ports = spec.get("ports") or ()
    known_names: set[str] = set()
    pairs: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        yield from _port_name(port.get("name"), path, known_names, needed=len(ports) > 1)
        if problem := names.port(port.get("port")):
            yield causes.invalid(f"{path}.port", port.get("port", 0), problem)
        yield from one_of(port.get("protocol"), PROTOCOLS, f"{path}.protocol")
        target = port.get("targetPort")
        if target is not None and (problem := names.port_or_name(target)):
            yield causes.invalid(f"{path}.targetPort", target, problem)
        pair = (port.get("protocol"), port.get("port"))
        if pair in pairs:
            yield causes.duplicate(path, {"protocol": pair[0], "port": pair[1]})
        pairs.add(pair)
    yield from _node_ports(ports)


def _node_ports(ports: Iterable[Json]) -> Iterator[Cause]:
    """Node ports that occur twice with the same protocol."""
    pairs: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        number = port.get("nodePort")
        pair = (port.get("protocol"), number)
        if number and pair in pairs:
            yield causes.duplicate(f"spec.ports[{index}].nodePort", number)
        pairs.add(pair)


def _port_name(name: Any, path: str, known_names: set[str], *, needed: bool) -> Iterator[Cause]:
    if not name:
        if needed:
            yield causes.required(f"{path}.name")
        return
    if problem := names.label(name):
        yield causes.invalid(f"{path}.name", name, problem)
    elif name in known_names:
        yield causes.duplicate(f"{path}.name", name)
    known_names.add(name)


def _service_kept(spec: Json, old: Json) -> Iterator[Cause]:
    """Addresses, primary family and class of a Service that keeps having them."""
    classes = spec.get("loadBalancerClass"), old.get("loadBalancerClass")
    if spec.get("type") == old.get("type") == "LoadBalancer" and classes[0] != classes[1]:
        yield causes.invalid("spec.loadBalancerClass", classes[0], "may not change once set")
    if "ExternalName" in (spec.get("type"), old.get("type")):
        return
    was, now = old.get("clusterIPs") or [], spec.get("clusterIPs") or []
    for index, ip in enumerate(was):
        if index < len(now) and now[index] != ip:
            yield causes.invalid(f"spec.clusterIPs[{index}]", now, "may not change once set")
        elif index >= len(now) and index == 0:
            yield causes.invalid("spec.clusterIPs[0]", now, "primary clusterIP can not be unset")
    families = spec.get("ipFamilies") or []
    if old.get("ipFamilies") and families and families[0] != old["ipFamilies"][0]:
        yield causes.invalid("spec.ipFamilies[0]", families[0], "may not change once set")


def _usable_ip(text: str, path: str) -> Iterator[Cause]:
    if problem := names.ip(text):
        yield causes.invalid(path, text, problem)
        return
    address = ip_address(text)
    for wrong, detail in (
        (address.is_unspecified, f"may not be unspecified ({text})"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (address.is_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ):
        if wrong:
            yield causes.invalid(path, text, detail)


def check_endpoints(new: Json, _: Json | None) -> Iterator[Cause]:
    """Endpoints."""
    for index, subset in enumerate(new.get("subsets") or ()):
        path = f"subsets[{index}]"
        for field in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(field) or ()):
                yield from _usable_ip(address.get("ip") or "", f"{path}.{field}[{number}].ip")
        ports = subset.get("ports") or ()
        for number, port in enumerate(ports):
            where = f"{path}.ports[{number}]"
            if not port.get("name") and len(ports) > 1:
                yield causes.required(f"{where}.name")
            if problem := names.port(port.get("port")):
                yield causes.invalid(f"{where}.port", port.get("port", 0), problem)
            yield from one_of(port.get("protocol"), PROTOCOLS, f"{where}.protocol")


def check_endpoint_slice(new: Json, old: Json | None) -> Iterator[Cause]:
    """An EndpointSlice."""
    kind = new.get("addressType")
    if not kind:
        yield causes.required("addressType")
    else:
        yield from one_of(kind, ("FQDN", "IPv4", "IPv6"), "addressType")
    if old is not None and old.get("addressType") != kind:
        yield causes.invalid("addressType", kind, "field is immutable")
    endpoints = new.get("endpoints") or ()
    if len(endpoints) > 1000:
        yield causes.too_many("endpoints", len(endpoints), 1000)
    for index, endpoint in enumerate(endpoints):
        yield from _endpoint(endpoint, kind, f"endpoints[{index}]")
    known_names: set[str] = set()
    for index, port in enumerate(new.get("ports") or ()):
        path, name = f"ports[{index}]", port.get("name") or ""
        if name in known_names:
            yield causes.duplicate(f"{path}.name", name)
        elif name and (problem := names.label(name)):
            yield causes.invalid(f"{path}.name", name, problem)
        known_names.add(name)
        yield from one_of(port.get("protocol"), PROTOCOLS, f"{path}.protocol")


def _endpoint(endpoint: Json, kind: Any, path: str) -> Iterator[Cause]:
    addresses = endpoint.get("addresses") or ()
    if not addresses:
        yield causes.required(f"{path}.addresses", "must contain at least 1 address")
    if len(addresses) > 100:
        yield causes.too_many(f"{path}.addresses", len(addresses), 100)
    for number, text in enumerate(addresses):
        where = f"{path}.addresses[{number}]"
        if kind == "FQDN":
            if problem := names.subdomain(text):
                yield causes.invalid(where, text, problem)
        elif names.ip(text) or f"IPv{ip_address(text).version}" != kind:
            yield causes.invalid(where, text, f"must be a valid {kind} address")
        else:
            yield from _usable_ip(text, where)


def check_network_policy(new: Json, _: Json | None) -> Iterator[Cause]:
    """A NetworkPolicy."""
    spec: Json = new.get("spec") or {}
    yield from check_selector(spec.get("podSelector"), "spec.podSelector")
    types = spec.get("policyTypes") or ()
    if len(types) > 2:
        yield causes.invalid("spec.policyTypes", types, "may not specify more than two policyTypes")
    for index, kind in enumerate(types):
        yield from one_of(kind, ("Egress", "Ingress"), f"spec.policyTypes[{index}]")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or ()):
            path = f"spec.{direction}[{index}]"
            for number, port in enumerate(rule.get("ports") or ()):
                yield from _policy_port(port, f"{path}.ports[{number}]")
            for number, peer in enumerate(rule.get(peers) or ()):
                yield from _policy_peer(peer, f"{path}.{peers}[{number}]")


def _policy_port(port: Json, path: str) -> Iterator[Cause]:
    yield from one_of(port.get("protocol"), PROTOCOLS, f"{path}.protocol")
    number, end = port.get("port"), port.get("endPort")
    if number is not None and (problem := names.port_or_name(number)):
        yield causes.invalid(f"{path}.port", number, problem)
    if end is None:
        return
    if number is None:
        yield causes.invalid(f"{path}.endPort", end, "may not be specified when `port` is not specified")
    elif isinstance(number, str):
        yield causes.invalid(f"{path}.endPort", end, "may not be specified when `port` is non-numeric")
    elif end < number:
        yield causes.invalid(f"{path}.endPort", end, "must be greater than or equal to `port`")
    elif problem := names.port(end):
        yield causes.invalid(f"{path}.endPort", end, problem)


def _policy_peer(peer: Json, path: str) -> Iterator[Cause]:
    kinds = [kind for kind in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(kind) is not None]
    if not kinds:
        yield causes.required(path, "must specify a peer")
    for kind in ("podSelector", "namespaceSelector"):
        yield from check_selector(peer.get(kind), f"{path}.{kind}")
    block = peer.get("ipBlock")
    if block is None:
        return
    if len(kinds) > 1:
        yield causes.forbidden(path, "may not specify both ipBlock and another peer")
    yield from _ip_block(block, f"{path}.ipBlock")


def _network(text: str) -> IPv4Network | IPv6Network | None:
    return None if names.cidr(text) else ip_network(text, strict=False)


def _inside(subnet: IPv4Network | IPv6Network, network: IPv4Network | IPv6Network) -> bool:
    """Whether ``subnet`` lies in ``network`` and is smaller."""
    if isinstance(subnet, IPv4Network) and isinstance(network, IPv4Network):
        return subnet != network and subnet.subnet_of(network)
    if isinstance(subnet, IPv6Network) and isinstance(network, IPv6Network):
        return subnet != network and subnet.subnet_of(network)
    return False


def _ip_block(block: Json, path: str) -> Iterator[Cause]:
    text = block.get("cidr")
    if not text:
        yield causes.required(f"{path}.cidr")
        return
    network = _network(text)
    if network is None:
        yield causes.invalid(f"{path}.cidr", text, names.cidr(text))
        return
    for index, item in enumerate(block.get("except") or ()):
        where, excluded = f"{path}.except[{index}]", _network(item)
        if excluded is None:
            yield causes.invalid(where, item, names.cidr(item))
        elif not _inside(excluded, network):
            yield causes.invalid(where, item, "must be a strict subset of `cidr`")


def check_ingress(new: Json, _: Json | None) -> Iterator[Cause]:
    """An Ingress."""
    spec: Json = new.get("spec") or {}
    default = spec.get("defaultBackend")
    if not spec.get("rules") and default is None:
        detail = "either `defaultBackend` or `rules` must be specified"
        yield causes.invalid("spec", spec.get("rules") or [], detail)
    if default is not None:
        yield from _backend(default, "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules") or ()):
        path = f"spec.rules[{index}]"
        if rule.get("host"):
            yield from _host(rule["host"], f"{path}.host")
        if rule.get("http") is not None:
            yield from _paths(rule["http"], f"{path}.http")
    for index, entry in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(entry.get("hosts") or ()):
            yield from _host(host, f"spec.tls[{index}].hosts[{number}]")
    name = spec.get("ingressClassName")
    if name is not None and (problem := names.subdomain(name)):
        yield causes.invalid("spec.ingressClassName", name, problem)


def _host(host: str, path: str) -> Iterator[Cause]:
    if not names.ip(host):
        yield causes.invalid(path, host, "must be a DNS name, not an IP address")
        return
    check = names.wildcard if "*" in host else names.subdomain
    if problem := check(host):
        yield causes.invalid(path, host, problem)


def _paths(http: Json, path: str) -> Iterator[Cause]:
    if not http.get("paths"):
        yield causes.required(f"{path}.paths")
    for index, item in enumerate(http.get("paths") or ()):
        where, kind, text = f"{path}.paths[{index}]", item.get("pathType"), item.get("path") or ""
        if not kind:
            yield causes.required(f"{where}.pathType", "pathType must be specified")
        else:
            yield from one_of(kind, ("Exact", "ImplementationSpecific", "Prefix"), f"{where}.pathType")
        if (kind in ("Exact", "Prefix") or text) and not text.startswith("/"):
            yield causes.invalid(f"{where}.path", text, "must be an absolute path")
        elif kind in ("Exact", "Prefix"):
            for bad in ("//", "/./", "/../", "%2f", "%2F"):
                if bad in text:
                    yield causes.invalid(f"{where}.path", text, f"must not contain '{bad}'")
        yield from _backend(item.get("backend") or {}, f"{where}.backend")


def _backend(backend: Json, path: str) -> Iterator[Cause]:
    service, resource = backend.get("service"), backend.get("resource")
    if service is None and resource is None:
        yield causes.required(path, "port name or number is required")
        return
    if service is not None and resource is not None:
        yield causes.invalid(path, "", "cannot set both resource and service backends")
    if service is None:
        return
    name, port = service.get("name"), service.get("port") or {}
    if not name:
        yield causes.required(f"{path}.service.name")
    elif problem := names.label(name):
        yield causes.invalid(f"{path}.service.name", name, problem)
    yield from _backend_port(port, path)


def _backend_port(port: Json, path: str) -> Iterator[Cause]:
    name, number = port.get("name"), port.get("number")
    if name and number:
        yield causes.invalid(path, "", "cannot set both port name & port number")
    elif name:
        if problem := names.port_name(name):
            yield causes.invalid(f"{path}.service.port.name", name, problem)
    elif number is None:
        yield causes.required(path, "port name or number is required")
    elif problem := names.port(number):
        yield causes.invalid(f"{path}.service.port.number", number, problem)


def check_ingress_class(new: Json, old: Json | None) -> Iterator[Cause]:
    """An IngressClass."""
    spec: Json = new.get("spec") or {}
    if not spec.get("controller"):
        yield causes.required("spec.controller")
    elif old is not None and (old.get("spec") or {}).get("controller") != spec["controller"]:
        yield causes.invalid("spec.controller", spec["controller"], "field is immutable")


def check_ip_address(new: Json, old: Json | None) -> Iterator[Cause]:
    """An IPAddress: the object that holds the address."""
    parent = (new.get("spec") or {}).get("parentRef")
    if parent is None:
        yield causes.required("spec.parentRef")
        return
    for field in ("resource", "name"):
        if not parent.get(field):
            yield causes.required(f"spec.parentRef.{field}")
    group = parent.get("group")
    if group and (problem := names.subdomain(group)):
        yield causes.invalid("spec.parentRef.group", group, problem)
    for field in ("resource", "name", "namespace"):
        text = parent.get(field)
        if text and (problem := names.path_segment(text)):
            yield causes.invalid(f"spec.parentRef.{field}", text, problem)
    if old is not None and (old.get("spec") or {}).get("parentRef") != parent:
        yield causes.invalid("spec.parentRef", parent, "field is immutable")


def check_lease(new: Json, _: Json | None) -> Iterator[Cause]:
    """A Lease."""
    spec: Json = new.get("spec") or {}
    yield from at_least(spec.get("leaseDurationSeconds"), 1, "spec.leaseDurationSeconds")
    yield from at_least(spec.get("leaseTransitions"), 0, "spec.leaseTransitions")
