"""Rows of the network kinds: Service, endpoints, Ingress, NetworkPolicy and the address kinds."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Column,
    Json,
    Printer,
    age,
    at,
    labels,
    name,
    plain,
    selector,
    shortened,
    wide,
)


def _balancer(obj: Json) -> str:
    """The addresses of a load balancer."""
    ingress = at(obj, "status.loadBalancer.ingress", [])
    return ",".join(sorted({item.get("ip") or item.get("hostname", "") for item in ingress} - {""}))


def _external(obj: Json) -> str:
    """The external addresses of a Service."""
    kind, external_ips = at(obj, "spec.type", "ClusterIP"), at(obj, "spec.externalIPs", [])
    if kind == "ExternalName":
        return str(at(obj, "spec.externalName", ""))
    if kind != "LoadBalancer":
        return ",".join(external_ips) or NONE
    balancer = _balancer(obj)
    if external_ips:
        return ",".join(([balancer] if balancer else []) + external_ips)
    return balancer or "<pending>"


def _ports(obj: Json) -> str:
    """``80/TCP,443:30443/TCP``."""
    return (
        ",".join(
            f"{port.get('port')}"
            + (f":{port['nodePort']}" if port.get("nodePort") else "")
            + f"/{port.get('protocol', 'TCP')}"
            for port in at(obj, "spec.ports", [])
        )
        or NONE
    )


def _service(obj: Json, now: datetime) -> list[Any]:
    ips = at(obj, "spec.clusterIPs", []) or [at(obj, "spec.clusterIP") or NONE]
    return [
        name(obj),
        at(obj, "spec.type", "ClusterIP"),
        ips[0],
        _external(obj),
        _ports(obj),
        age(obj, now),
        labels(at(obj, "spec.selector")),
    ]


def _host_port(ip: str, port: object) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _subset(subset: Json) -> Iterable[str]:
    ips = [item.get("ip", "") for item in subset.get("addresses") or ()]
    ports = subset.get("ports") or ()
    return [_host_port(ip, port.get("port")) for port in ports for ip in ips] if ports else ips


def _endpoints(obj: Json, now: datetime) -> list[Any]:
    endpoints = [text for subset in obj.get("subsets") or () for text in _subset(subset)]
    return [name(obj), shortened(endpoints), age(obj, now)]


def _slice(obj: Json, now: datetime) -> list[Any]:
    ports = [str(port.get("port") or port.get("name") or "*") for port in obj.get("ports") or ()]
    ips = [ip for endpoint in obj.get("endpoints") or () for ip in endpoint.get("addresses") or ()]
    return [
        name(obj),
        obj.get("addressType", ""),
        shortened(ports, empty=UNSET),
        shortened(ips, empty=UNSET),
        age(obj, now),
    ]


def _ingress(obj: Json, now: datetime) -> list[Any]:
    hosts = [rule["host"] for rule in at(obj, "spec.rules", []) if rule.get("host")]
    ingress = at(obj, "status.loadBalancer.ingress", [])
    return [
        name(obj),
        at(obj, "spec.ingressClassName", NONE),
        shortened(hosts, empty="*"),
        ",".join(item.get("ip") or item.get("hostname", "") for item in ingress),
        "80, 443" if at(obj, "spec.tls") else "80",
        age(obj, now),
    ]


def _ingress_class(obj: Json, now: datetime) -> list[Any]:
    parameters = at(obj, "spec.parameters")
    text = NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
        text = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    return [name(obj), at(obj, "spec.controller", ""), text, age(obj, now)]


def _policy(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), selector(at(obj, "spec.podSelector")), age(obj, now)]


def _cidr(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), ",".join(at(obj, "spec.cidrs", [])), age(obj, now)]


def _address(obj: Json, now: datetime) -> list[Any]:
    parent = at(obj, "spec.parentRef", {})
    fields = [parent.get(key, "") for key in ("group", "resource", "namespace", "name")]
    return [name(obj), "/".join(part for part in fields if part), age(obj, now)]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Service"): Printer(
        (*plain("Type", "Cluster-IP", "External-IP", "Port(s)"), AGE, *wide("Selector")), _service
    ),
    ("", "Endpoints"): Printer((NAME, Column("Endpoints"), AGE), _endpoints),
    ("discovery.k8s.io", "EndpointSlice"): Printer((*plain("AddressType", "Ports", "Endpoints"), AGE), _slice),
    ("networking.k8s.io", "Ingress"): Printer((*plain("Class", "Hosts", "Address", "Ports"), AGE), _ingress),
    ("networking.k8s.io", "IngressClass"): Printer((*plain("Controller", "Parameters"), AGE), _ingress_class),
    ("networking.k8s.io", "NetworkPolicy"): Printer((*plain("Pod-Selector"), AGE), _policy),
    ("networking.k8s.io", "ServiceCIDR"): Printer((*plain("CIDRs"), AGE), _cidr),
    ("networking.k8s.io", "IPAddress"): Printer((*plain("ParentRef"), AGE), _address),
}
"""By group and kind."""
