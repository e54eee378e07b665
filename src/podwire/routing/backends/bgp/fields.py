"""Single fields of the objects of ``projectcalico.org/v3``; an error names the object and the field."""

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from podwire.bgp.configuration import Address, Community, Network
from podwire.bgp.fields import community
from podwire.errors import ConfigError

DEVICE_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,15}")
"""The name of a device, with ``*`` for any letters."""


def parse_address_and_port(source: str, text: str) -> tuple[Address, int | None]:
    """An address and a port, None without one: ``192.0.2.1:1179``, ``[fd00::1]:1179``.

    Raises: ConfigError.
    """
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        if port and not port.startswith(":"):
            raise ConfigError(source, "spec.peerIP", f"{text!r}: expected an address, or [address]:port")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    address = parse_address(source, "spec.peerIP", host)
    if not port:
        return address, None
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(source, "spec.peerIP", f"{text!r}: expected a port in 1..65535")
    return address, int(port)


def parse_address(source: str, path: str, text: str) -> Address:
    """An address.

    Raises: ConfigError.
    """
    try:
        if "%" in text:
            raise ValueError(f"{text!r} has a zone")
        return ip_address(text)
    except ValueError as problem:
        raise ConfigError(source, path, f"{problem}; expected an address") from problem


def parse_network(source: str, path: str, text: str) -> Network:
    """A range of addresses, host bits cleared.

    Raises: ConfigError.
    """
    try:
        if "%" in text or "/" not in text:
            raise ValueError(f"{text!r} is not a range")
        return ip_network(text, strict=False)
    except ValueError as problem:
        raise ConfigError(source, path, f"{problem}; expected address/length") from problem


def single_network(text: str) -> Network | None:
    """The network of one address; None when the text is no address."""
    try:
        return ip_network(ip_address(text))
    except ValueError:
        return None


def parse_community(source: str, path: str, text: str) -> Community:
    """A community.

    Raises: ConfigError.
    """
    try:
        return community(text)
    except ValueError as problem:
        raise ConfigError(source, path, str(problem)) from problem


def refuse_unhonoured(source: str, fields: Mapping[str, tuple[object, object]]) -> None:
    """Refuses fields that have another value than none, or than the one that describes what podwire does.

    ``fields`` has the value and the allowed word of each path.

    Raises: ConfigError.
    """
    for path, (value, allowed) in fields.items():
        if value and value != allowed:
            advice = f"expected {allowed}" if allowed else "leave it out"
            raise ConfigError(source, path, f"{yaml_word(value)} is not supported; {advice}")


def yaml_word(value: object) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
