"""Finds invalid fields of Services and EndpointSlices that an API server should refuse, and leaves them out (pure).

A wrong port, address, family or protocol costs only the port or endpoint that has it: ``proxy.resolve`` leaves it out,
and an Event names the field. All other ports, endpoints and Services are programmed. Without this check the kernel, or
the code that writes addresses for the kernel, would refuse a whole change again and again.
"""

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from podwire.model.service import EndpointSlice, Service, ServiceSpec

PROTOCOLS = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
FAMILIES = {"IPv4": "ip", "IPv6": "ip6"}
MOST_AFFINITY_S = 86400
"""The longest ``timeoutSeconds`` that the API server accepts."""
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_HOST = re.compile(rf"(?!0\.0\.0\.0|127\.|2(?:2[4-9]|3[0-9])\.|255\.255\.255\.255){_CANONICAL.pattern}")
"""The canonical IPv4 address of one host, which is the form of nearly all addresses."""
_SPECIAL = re.compile(r"0\.0\.0\.0|127\..*|2(?:2[4-9]|3[0-9])\..*|255\.255\.255\.255|::1?|::ffff:.*|ff[0-9a-f]{2}:.*")
"""Canonical addresses of no single remote host: unspecified, loopback, multicast, broadcast, mapped IPv4."""


def valid_port(number: int | None) -> bool:
    """Whether a number is a port."""
    return number is not None and 0 < number < 65536


def canonical_address(text: str) -> str:
    """The address in canonical form, or an empty text if it is invalid; numbers with leading zeros are decimal."""
    if _CANONICAL.fullmatch(text):  # nearly all addresses; parsing costs ten times as much
        return text
    plain = text.strip()
    if "." in plain and ":" not in plain:
        plain = ".".join(part.lstrip("0") or "0" for part in plain.split("."))
    try:
        canonical = str(ip_address(plain))
    except ValueError:
        return ""
    if "%" in canonical:
        return ""
    return text if canonical == text else canonical  # keep one copy of equal texts


def usable_address(text: str, family: str = "") -> str:
    """The canonical address of one host of ``ip`` or ``ip6`` (empty: of any family); empty when it is none."""
    if _HOST.fullmatch(text):
        return "" if family == "ip6" else text
    address = canonical_address(text)
    if not address or _SPECIAL.fullmatch(address):
        return ""
    return "" if family and (":" in address) != (family == "ip6") else address


def service_problems(service: Service) -> Iterator[str]:
    """The field of each part of a Service that is left out, with its value."""
    spec = service.spec
    for at, port in enumerate(spec.ports):
        if not valid_port(port.port):
            yield f"spec.ports[{at}].port {port.port}: expected 1 to 65535"
        if port.node_port and not valid_port(port.node_port):
            yield f"spec.ports[{at}].nodePort {port.node_port}: expected 1 to 65535"
        if port.protocol and port.protocol not in PROTOCOLS:
            yield f"spec.ports[{at}].protocol {port.protocol!r:.40}: expected TCP, UDP or SCTP"
    if spec.health_check_node_port and not valid_port(spec.health_check_node_port):
        yield f"spec.healthCheckNodePort {spec.health_check_node_port}: expected 1 to 65535"
    if not service.headless and spec.type != "ExternalName":
        yield from _address_problems("spec.clusterIPs", spec.cluster_ips or tuple(filter(None, (spec.cluster_ip,))))
    if spec.external_ips:
        yield from _address_problems("spec.externalIPs", spec.external_ips)
    if ingress := service.status.load_balancer.ingress:
        yield from _address_problems("status.loadBalancer.ingress", (entry.ip for entry in ingress if entry.ip))
    if spec.session_affinity == "ClientIP":
        yield from _affinity_problems(spec)


def _affinity_problems(spec: ServiceSpec) -> Iterator[str]:
    config = spec.session_affinity_config
    timeout_s = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else 1
    if not 0 < timeout_s <= MOST_AFFINITY_S:
        yield f"spec.sessionAffinityConfig.clientIP.timeoutSeconds {timeout_s}: expected 1 to {MOST_AFFINITY_S}"


def slice_problems(endpoint_slice: EndpointSlice) -> Iterator[str]:
    """The field of each part of an EndpointSlice that is left out, with its value."""
    kind = endpoint_slice.address_type
    family = FAMILIES.get(kind)
    for at, port in enumerate(endpoint_slice.ports or ()):
        if port.port is not None and not valid_port(port.port):
            yield f"ports[{at}].port {port.port}: expected 1 to 65535"
    if family is None:
        return
    for at, endpoint in enumerate(endpoint_slice.endpoints or ()):
        text = endpoint.addresses[0] if endpoint.addresses else ""
        if not usable_address(text, family):
            yield f"endpoints[{at}].addresses[0] {text!r:.60}: expected the {kind} address of a host"


def _address_problems(path: str, texts: Iterable[str]) -> Iterator[str]:
    for at, text in enumerate(texts):
        if not usable_address(text):
            yield f"{path}[{at}] {text!r:.60}: expected the address of a host"
