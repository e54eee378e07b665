"""The words of a question: where a connection comes from and where it goes, as people type them (pure).

From: ``shop/web-0`` or ``pod/shop/web-0``, also the beginning of the name up to a dash; ``shop/app=web``, a label
selector; ``node/node-1``; ``external``, anybody outside; an IP address.

To: ``svc/shop/catalog``, with ``:http`` or ``:8080`` behind it; an IP address, with ``:80`` behind it (IPv6 in
brackets then); ``node/node-1``; ``external``; a DNS name of a Service; ``pod/shop/web-0``. The port may also stand
alone as the third word, ``80``, ``53/UDP`` or, for a Service, its name; ``ICMP`` has none.
"""

from ipaddress import ip_address
from typing import Literal

import msgspec

from podwire.errors import ConfigError

PROTOCOLS = ("tcp", "udp", "sctp")
PING = "icmp"
"""A protocol without ports."""


class Ref(msgspec.Struct, frozen=True):
    """What a word names, not yet looked up."""

    kind: Literal["pod", "node", "service", "address", "external", "name"]
    """``name``: a word alone, or with dots: a DNS name, a pod or a node."""
    namespace: str = ""
    name: str = ""
    """For ``address`` the address; for ``service`` and ``name`` without the port."""
    port: str = ""
    """A number or the name of a port, behind a colon."""
    word: str = ""
    """As it was typed."""


def parse_source(word: str) -> Ref:
    """What ``FROM`` names.

    Raises: ConfigError.
    """
    if word == "external":
        return Ref("external", word=word)
    if address := _address(word):
        return Ref("address", name=address, word=word)
    if word.startswith(("svc/", "service/")):
        raise ConfigError("FROM", "", f"{word!r}: connections come from pods, nodes or addresses, not from a Service")
    return _named(word, "FROM")


def parse_target(word: str) -> Ref:
    """What ``TO`` names.

    Raises: ConfigError.
    """
    if address := _address(word):
        return Ref("address", name=address, word=word)
    if _is_range(word):
        return _named(word, "TO")
    rest, colon, port = word.rpartition(":")
    if not colon:
        rest, port = word, ""
    elif not rest or not port:
        raise ConfigError("TO", "", f"{word!r}: expected something before and behind the colon")
    if rest == "external":
        return Ref("external", port=port, word=word)
    if address := _address(rest.removeprefix("[").removesuffix("]")):
        return Ref("address", name=address, port=port, word=word)
    if rest.startswith(("svc/", "service/")):
        parts = rest.split("/")
        if len(parts) > 3 or not all(parts):
            raise ConfigError("TO", "", f"{word!r}: expected svc/NAMESPACE/NAME or svc/NAME")
        return Ref("service", parts[1] if len(parts) == 3 else "", parts[-1], port, word)
    return msgspec.structs.replace(_named(rest, "TO"), port=port, word=word)


def _named(word: str, argument: str) -> Ref:
    if not word or _is_range(word):
        raise ConfigError(argument, "", f"{word!r}: expected a pod, a node, a Service or one address")
    kind, _, rest = word.partition("/")
    if kind == "node" and rest:
        return Ref("node", name=rest, word=word)
    if kind == "pod" and rest:
        namespace, slash, name = rest.partition("/")
        pod = Ref("pod", namespace, name, word=word) if slash else Ref("pod", "", rest, word=word)
    elif rest:
        pod = Ref("pod", kind, rest, word=word)
    elif "/" in word:
        pod = Ref("pod", word=word)
    else:
        return Ref("name", name=word, word=word)
    if not pod.name or ("/" in pod.name and "=" not in pod.name):
        raise ConfigError(argument, "", f"{word!r}: expected NAMESPACE/POD, node/NAME or an address")
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


def parse_port(word: str) -> tuple[str, str]:
    """Port (a number or a name, as text) and protocol (``tcp``; empty: not said) of ``80``, ``53/UDP`` or ``http``.

    ``ICMP`` is port 0.

    Raises: ConfigError.
    """
    if word.lower() == PING:
        return "0", PING
    port, slash, protocol = word.partition("/")
    if not port or (port.isdigit() and not 0 < int(port) < 65536):
        raise ConfigError("PORT", "", f"{word!r}: expected a number from 1 to 65535 or the name of a Service's port")
    if slash and protocol.lower() not in PROTOCOLS:
        raise ConfigError("PORT", "", f"{word!r}: expected /TCP, /UDP or /SCTP behind the port")
    return port, protocol.lower()


def dns_parts(name: str, namespace: str, domain: str) -> tuple[str, str] | None:
    """Namespace and name of the Service that a DNS name means, seen from a namespace; None for one outside.

    ``catalog``, ``catalog.shop``, ``catalog.shop.svc`` and ``catalog.shop.svc.cluster.local`` are names of a Service.
    """
    parts = name.rstrip(".").lower().split(".")
    if parts[2:] in ([], ["svc"], ["svc", *domain.split(".")]):
        return (parts[1] if len(parts) > 1 else namespace, parts[0])
    return None
