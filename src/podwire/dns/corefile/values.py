"""Values in a Corefile: numbers, times, networks, names of zones and of record types. Pure."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import address_bytes, encode_name
from podwire.errors import ProtocolError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SERVER = re.compile(r"(?:\[(\S+)\]|([^:\s]+|[^\[\]\s]*:[^\[\]\s]*:[^\[\]\s]*))(?::(\d+))?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TYPES = {name: number for number, name in wire.TYPE_NAMES.items()}
_CLASSES = {"IN": wire.IN, "CH": 3, "HS": 4, "ANY": wire.CLASS_ANY}
_RCODES = {name: number for number, name in wire.RCODE_NAMES.items()}


def expect(condition: bool, directive: Directive, problem: str) -> None:  # noqa: FBT001
    """Refuses a directive.

    Raises: ConfigError with its line unless the condition holds.
    """
    if not condition:
        raise directive.wrong(problem)


def expect_bare(directive: Directive) -> None:
    """Refuses arguments and options.

    Raises: ConfigError with the line.
    """
    expect(not directive.arguments and not directive.block, directive, "podwire does not have options of this plugin")


def plain(zone: str) -> str:
    """A zone in lower case without the final dot; the root is empty."""
    return zone.lower().removesuffix(".")


def zone_name(directive: Directive, text: str) -> bytes:
    """The wire form of a name in lower case.

    Raises: ConfigError with the line when the text is no name.
    """
    try:
        return encode_name(plain(text))
    except ProtocolError as failure:
        raise directive.wrong(f"expected a domain name, got {text!r}") from failure


def zone_names(directive: Directive, texts: tuple[str, ...], default: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """The wire forms of zones; without any, ``default``.

    Raises: ConfigError with the line.
    """
    return tuple(zone_name(directive, text) for text in texts) or default


def whole(directive: Directive, text: str) -> int:
    """A whole number.

    Raises: ConfigError with the line.
    """
    expect(text.isascii() and text.isdigit(), directive, f"expected a whole number, got {text!r}")
    return int(text)


def seconds(directive: Directive, text: str) -> float:
    """A time in seconds; a number without unit is seconds.

    Raises: ConfigError with the line.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise directive.wrong(f"expected a time such as 5s or 500ms, got {text!r}")
    return float(match[1]) * _UNITS[match[2] or "s"]


def network(directive: Directive, text: str) -> IPv4Network | IPv6Network:
    """An address or a network.

    Raises: ConfigError with the line.
    """
    try:
        return ip_network(text, strict=False)
    except ValueError as failure:
        raise directive.wrong(f"expected an address or a network, got {text!r}") from failure


def server_address(directive: Directive, text: str) -> tuple[str, int]:
    """Address and port of a name server; the port is 53 if there is none.

    Raises: ConfigError with the line.
    """
    match = _SERVER.fullmatch(text)
    host = (match[1] or match[2]) if match is not None else ""
    if match is None or not address_bytes(host.partition("%")[0]):
        raise directive.wrong(f"expected an address, with or without a port, got {text!r}")
    return host, int(match[3] or 53)


def record_type(directive: Directive, text: str) -> int:
    """The number of a record type.

    Raises: ConfigError with the line.
    """
    if text.upper() not in _TYPES:
        raise directive.wrong(f"expected a record type, got {text!r}; the types are {', '.join(_TYPES)}")
    return _TYPES[text.upper()]


def record_class(directive: Directive, text: str) -> int:
    """The number of a class.

    Raises: ConfigError with the line.
    """
    if text.upper() not in _CLASSES:
        raise directive.wrong(f"expected a class, got {text!r}; the classes are {', '.join(_CLASSES)}")
    return _CLASSES[text.upper()]


def response_code(directive: Directive, text: str) -> int:
    """The number of a response code.

    Raises: ConfigError with the line.
    """
    if text.upper() not in _RCODES:
        raise directive.wrong(f"expected a response code, got {text!r}; the codes are {', '.join(_RCODES)}")
    return _RCODES[text.upper()]


def expression(directive: Directive, text: str) -> re.Pattern[str]:
    """A regular expression in the syntax that Go and Python share.

    Raises: ConfigError with the line.
    """
    try:
        return re.compile(text)
    except re.error as failure:
        raise directive.wrong(f"expected a regular expression, got {text!r}: {failure}") from failure
