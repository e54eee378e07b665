"""Parses the arguments of a question: FROM, TO and PORT (pure).

From: ``shop/web-0`` or ``pod/shop/web-0``, also the beginning of the name up to a dash; ``shop/app=web``, a label
selector; ``node/node-1``; ``external``, a client outside the cluster; an IP address.

To: ``svc/shop/catalog``, with ``:http`` or ``:8080`` behind it; an IP address, with ``:80`` behind it (IPv6 in
brackets then); ``node/node-1``; ``external``; a DNS name of a Service; ``pod/shop/web-0``. The port may also stand
alone as the third argument, ``80``, ``53/UDP`` or, for a Service, its name; ``ICMP`` has none.
"""

from ipaddress import ip_address
from typing import Literal

import msgspec

from podwire.errors import ConfigError

PROTOCOLS = ("tcp", "udp", "sctp")
PING = "icmp"
"""A protocol without ports."""


class Ref(msgspec.Struct, frozen=True):
    """A parsed argument, not yet looked up."""

    kind: Literal["pod", "node", "service", "address", "external", "name"]
    """``name``: a text alone, or with dots: a DNS name, a pod or a node."""
    namespace: str = ""
    name: str = ""
    """For ``address`` the address; for ``service`` and ``name`` without the port."""
    port: str = ""
    """A number or the name of a port, behind a colon."""
    typed: str = ""
    """The argument as typed."""


def parse_source(text: str) -> Ref:
    """Parses ``FROM``.

    Raises: ConfigError.
    """
    if text == "external":
        return Ref("external", typed=text)
    if address := _address(text):
        return Ref("address", name=address, typed=text)
    if text.startswith(("svc/", "service/")):
        raise ConfigError("FROM", "", f"{text!r}: connections come from pods, nodes or addresses, not from a Service")
    return _named(text, "FROM")


def parse_target(text: str) -> Ref:
    """Parses ``TO``.

    Raises: ConfigError.
    """
    if address := _address(text):
        return Ref("address", name=address, typed=text)
    if _is_range(text):
        return _named(text, "TO")
    rest, colon, port = text.rpartition(":")
    if not colon:
        rest, port = text, ""
    elif not rest or not port:
        raise ConfigError("TO", "", f"{text!r}: expected text before and after the colon")
    if rest == "external":
        return Ref("external", port=port, typed=text)
    if address := _address(rest.removeprefix("[").removesuffix("]")):
        return Ref("address", name=address, port=port, typed=text)
    if rest.startswith(("svc/", "service/")):
        segments = rest.split("/")
        if len(segments) > 3 or not all(segments):
            raise ConfigError("TO", "", f"{text!r}: expected svc/NAMESPACE/NAME or svc/NAME")
        return Ref("service", segments[1] if len(segments) == 3 else "", segments[-1], port, text)
    return msgspec.structs.replace(_named(rest, "TO"), port=port, typed=text)


def _named(text: str, argument: str) -> Ref:
    if not text or _is_range(text):
        raise ConfigError(argument, "", f"{text!r}: expected a pod, a node, a Service or one address")
    kind, _, rest = text.partition("/")
    if kind == "node" and rest:
        return Ref("node", name=rest, typed=text)
    if kind == "pod" and rest:
        namespace, slash, name = rest.partition("/")
        pod = Ref("pod", namespace, name, typed=text) if slash else Ref("pod", "", rest, typed=text)
    elif rest:
        pod = Ref("pod", kind, rest, typed=text)
    elif "/" in text:
        pod = Ref("pod", typed=text)
    else:
        return Ref("name", name=text, typed=text)
    if not pod.name or ("/" in pod.name and "=" not in pod.name):
        raise ConfigError(argument, "", f"{text!r}: expected NAMESPACE/POD, node/NAME or an address")
    return pod


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def _is_range(text: str) -> bool:
    """Whether it is a range of addresses, ``10.0.0.0/8``; namespaces have no dots or colons."""
    address, slash, _ = text.partition("/")
    return bool(slash and _address(address))


def parse_port(text: str) -> tuple[str, str]:
    """Port (a number or a name, as text) and protocol (``tcp``; empty: none) of ``80``, ``53/UDP`` or ``http``.

    ``ICMP`` is port 0.

    Raises: ConfigError.
    """
    if text.lower() == PING:
        return "0", PING
    port, slash, protocol = text.partition("/")
    if not port or (port.isdigit() and not 0 < int(port) < 65536):
        raise ConfigError("PORT", "", f"{text!r}: expected a number from 1 to 65535 or the name of a Service's port")
    if slash and protocol.lower() not in PROTOCOLS:
        raise ConfigError("PORT", "", f"{text!r}: expected /TCP, /UDP or /SCTP after the port")
    return port, protocol.lower()


def dns_parts(name: str, namespace: str, domain: str) -> tuple[str, str] | None:
    """Namespace and name of the Service that a DNS name means, seen from a namespace; None for one outside.

    ``catalog``, ``catalog.shop``, ``catalog.shop.svc`` and ``catalog.shop.svc.cluster.local`` are names of a Service.
    """
    labels = name.rstrip(".").lower().split(".")
    if labels[2:] in ([], ["svc"], ["svc", *domain.split(".")]):
        return (labels[1] if len(labels) > 1 else namespace, labels[0])
    return None
