"""The functions that Kubernetes adds to CEL, as a table: name, parameters, result, implementation.

A quantity, an address, a network, a URL and a version are maps at run time, with their kind under ``kind``; the
compiler knows them as types of their own, so that a version cannot be compared with a quantity. Source:
``k8s.io/apiserver/pkg/cel/library``.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from podwire.embedded.apiserver.cel import authorization, formats, regexes
from podwire.embedded.apiserver.cel.signature import Signature, Value
from podwire.embedded.apiserver.cel.times import wrapped
from podwire.embedded.apiserver.schema import quantity

_AUTHORIZATION = "kubernetes.authorization"

OPAQUE: dict[str, tuple[str, dict[str, str]]] = {
    "Quantity": ("kubernetes.Quantity", {}), "IP": ("net.IP", {}), "CIDR": ("net.CIDR", {}),
    "URL": ("kubernetes.URL", {}), "Semver": ("kubernetes.Semver", {}), "NamedFormat": ("kubernetes.NamedFormat", {}),
    "ResourceCheck": (f"{_AUTHORIZATION}.ResourceCheck", {}), "PathCheck": (f"{_AUTHORIZATION}.PathCheck", {}),
    "GroupCheck": (f"{_AUTHORIZATION}.GroupCheck", {}), "Decision": (f"{_AUTHORIZATION}.Decision", {}),
    "Authorizer": (f"{_AUTHORIZATION}.Authorizer", {"requestResource": f"{_AUTHORIZATION}.ResourceCheck"}),
}  # fmt: skip
"""The types that only these functions have, with the names that messages show, and their fields."""

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)


def _holds(parse: Callable[..., Any]) -> Callable[..., bool]:
    def holds(*arguments: Any) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return holds


# -- quantities


def _of_number(number: Decimal) -> Value:
    return {"kind": "Quantity", "value": str(number.normalize())}


def _quantity(text: str) -> Value:
    return _of_number(quantity.parse(text)[0])


def _as_integer(value: Value) -> int:
    number = Decimal(value["value"])
    if number != number.to_integral_value() or not -(2**63) <= number < 2**63:
        raise ValueError("cannot convert value to integer")
    return int(number)


def _is_integer(value: Value) -> bool:
    return _holds(lambda _: _as_integer(value))("")


def _added(left: Value, right: Value | int, sign: int = 1) -> Value:
    amount = Decimal(right["value"]) if isinstance(right, dict) else Decimal(right)
    return _of_number(Decimal(left["value"]) + sign * amount)


# -- versions


def _normalized(text: str) -> str:
    """A version with three numbers, without ``v`` and leading zeros."""
    numbers, mark, suffix = re.fullmatch(r"v?([0-9.]*)([-+]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    components = [
        component.lstrip("0") or "0" if component.isdigit() else component for component in numbers.split(".")
    ]
    return ".".join([*components, "0", "0"][: max(3, len(components))]) + mark + suffix


def _semver(text: str, normalize: bool = False) -> Value:  # noqa: FBT001, FBT002 - the library calls by position
    match = _SEMVER.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise ValueError(f"invalid semantic version {text!r}")
    numbers = [int(match[index]) for index in (1, 2, 3)]
    return {"kind": "Semver", "value": numbers, "pre": match[4] or ""}


def _order_of(value: Value) -> Any:
    """The sort key of a value, to compare two values of the same kind."""
    if value["kind"] == "Quantity":
        return Decimal(value["value"])
    stages = value["pre"].split(".") if value["pre"] else []
    ranks = tuple((0, int(stage), "") if stage.isdigit() else (1, 0, stage) for stage in stages)
    return tuple(value["value"]), not stages, ranks


def _compare(left: Value, right: Value) -> int:
    left_order, right_order = _order_of(left), _order_of(right)
    return int(left_order > right_order) - int(left_order < right_order)


# -- addresses


def _ip(text: str) -> Value:
    if "%" in text:
        raise ValueError(f"IP Address {text!r} with zone value is not allowed")
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return {"kind": "IP", "value": str(address)}


def _cidr(text: str) -> Value:
    _, slash, bits = text.partition("/")
    if not slash or not bits.isdigit():
        raise ValueError(f"network address parse error: {text!r}")
    return {"kind": "CIDR", "value": str(ipaddress.ip_interface(text))}


def _address(value: Value) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(value["value"])


def _interface(value: Value) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(value["value"])


def _contains_ip(network: Value, address: Value | str) -> bool:
    contained = _ip(address) if isinstance(address, str) else address
    return _address(contained) in _interface(network).network


def _contains_cidr(network: Value, subnet: Value | str) -> bool:
    inner = _interface(_cidr(subnet) if isinstance(subnet, str) else subnet).network
    outer = _interface(network).network
    same = inner.version == outer.version
    return same and inner.prefixlen >= outer.prefixlen and inner.network_address in outer


def _is_global(value: Value) -> bool:
    address = _address(value)
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and str(address) != "255.255.255.255"


# -- URLs


def _url(text: str) -> Value:
    components = urlsplit(text)
    if not (components.scheme and components.netloc) and not text.startswith("/"):
        raise ValueError(f"URL parse error during conversion from string: parse {text!r}: invalid URI for request")
    if components.port is None and components.netloc.rpartition("@")[2].endswith(":"):
        raise ValueError(f"URL parse error during conversion from string: parse {text!r}: invalid port")
    return {"kind": "URL", "value": text}


def _host(value: Value) -> str:
    return urlsplit(value["value"]).netloc.rpartition("@")[2]


def _host_name(value: Value) -> str:
    return urlsplit(value["value"]).hostname or ""


def _port(value: Value) -> str:
    port = urlsplit(value["value"]).port
    return "" if port is None else str(port)


def _text_of(value: Value) -> str:
    return str(value["value"])


# -- lists, sets and regular expressions


def _smallest(items: Sequence[Any], choose: Callable[[Sequence[Any]], Any], name: str) -> Any:
    if not items:
        raise ValueError(f"{name} called on empty list")
    return wrapped(choose(items))


def _sum(items: Sequence[Any]) -> Any:
    total = items[0] if items else 0
    for item in items[1:]:
        total += item
    return wrapped(total)


def _is_sorted(items: Sequence[Any]) -> bool:
    return all(items[index] <= items[index + 1] for index in range(len(items) - 1))


def _index_of(items: Sequence[Any], value: Any) -> int:
    return next((index for index, item in enumerate(items) if item == value), -1)


def _last_index_of(items: Sequence[Any], value: Any) -> int:
    return next((index for index in range(len(items) - 1, -1, -1) if items[index] == value), -1)


def _inserted(items: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    """The map with one more entry, for the macro ``transformMap``."""
    if key in items:
        raise ValueError(f"insert failed: key {key!r} already exists")
    return {**items, key: value}


def _merged(items: dict[Any, Any], more: dict[Any, Any]) -> dict[Any, Any]:
    for key, value in more.items():
        items = _inserted(items, key, value)
    return items


def _ordered(kind: str) -> list[Signature]:
    """Comparisons of two values of a kind."""
    return [
        Signature("isGreaterThan", (kind, kind), "bool", lambda a, b: _compare(a, b) > 0, method=True),
        Signature("isLessThan", (kind, kind), "bool", lambda a, b: _compare(a, b) < 0, method=True),
        Signature("compareTo", (kind, kind), "int", _compare, method=True),
    ]


def _listed(item: str) -> list[Signature]:
    """The methods of a list whose items have an order."""
    of = f"list({item})"
    return [
        Signature("isSorted", (of,), "bool", _is_sorted, method=True),
        Signature("min", (of,), item, lambda items: _smallest(items, min, "min"), method=True),
        Signature("max", (of,), item, lambda items: _smallest(items, max, "max"), method=True),
    ]


FUNCTIONS: tuple[Signature, ...] = (
    Signature("quantity", ("string",), "Quantity", _quantity),
    Signature("isQuantity", ("string",), "bool", _holds(_quantity)),
    Signature("sign", ("Quantity",), "int", lambda a: _compare(a, _quantity("0")), method=True),
    Signature("isInteger", ("Quantity",), "bool", _is_integer, method=True),
    Signature("asInteger", ("Quantity",), "int", _as_integer, method=True),
    Signature("asApproximateFloat", ("Quantity",), "double", lambda a: float(a["value"]), method=True),
    Signature("add", ("Quantity", "Quantity"), "Quantity", _added, method=True),
    Signature("add", ("Quantity", "int"), "Quantity", _added, method=True),
    Signature("sub", ("Quantity", "Quantity"), "Quantity", lambda a, b: _added(a, b, -1), method=True),
    Signature("sub", ("Quantity", "int"), "Quantity", lambda a, b: _added(a, b, -1), method=True),
    *_ordered("Quantity"),
    Signature("semver", ("string",), "Semver", _semver),
    Signature("semver", ("string", "bool"), "Semver", _semver),
    Signature("isSemver", ("string",), "bool", _holds(_semver)),
    Signature("isSemver", ("string", "bool"), "bool", _holds(_semver)),
    Signature("major", ("Semver",), "int", lambda a: a["value"][0], method=True),
    Signature("minor", ("Semver",), "int", lambda a: a["value"][1], method=True),
    Signature("patch", ("Semver",), "int", lambda a: a["value"][2], method=True),
    *_ordered("Semver"),
    Signature("ip", ("string",), "IP", _ip),
    Signature("isIP", ("string",), "bool", _holds(_ip)),
    Signature("ip.isCanonical", ("string",), "bool", lambda text: _ip(text)["value"] == text),
    Signature("family", ("IP",), "int", lambda a: _address(a).version, method=True),
    Signature("isUnspecified", ("IP",), "bool", lambda a: _address(a).is_unspecified, method=True),
    Signature("isLoopback", ("IP",), "bool", lambda a: _address(a).is_loopback, method=True),
    Signature("isLinkLocalMulticast", ("IP",), "bool", lambda a: _text_of(a).startswith(("224.0.0.", "ff02:")),
              method=True),
    Signature("isLinkLocalUnicast", ("IP",), "bool", lambda a: _address(a).is_link_local, method=True),
    Signature("isGlobalUnicast", ("IP",), "bool", _is_global, method=True),
    Signature("cidr", ("string",), "CIDR", _cidr),
    Signature("isCIDR", ("string",), "bool", _holds(_cidr)),
    Signature("containsIP", ("CIDR", "string"), "bool", _contains_ip, method=True),
    Signature("containsIP", ("CIDR", "IP"), "bool", _contains_ip, method=True),
    Signature("containsCIDR", ("CIDR", "string"), "bool", _contains_cidr, method=True),
    Signature("containsCIDR", ("CIDR", "CIDR"), "bool", _contains_cidr, method=True),
    Signature("ip", ("CIDR",), "IP", lambda a: _ip(str(_interface(a).ip)), method=True),
    Signature("masked", ("CIDR",), "CIDR", lambda a: _cidr(str(_interface(a).network)), method=True),
    Signature("prefixLength", ("CIDR",), "int", lambda a: _interface(a).network.prefixlen, method=True),
    Signature("url", ("string",), "URL", _url),
    Signature("isURL", ("string",), "bool", _holds(_url)),
    Signature("getScheme", ("URL",), "string", lambda a: urlsplit(a["value"]).scheme, method=True),
    Signature("getHost", ("URL",), "string", _host, method=True),
    Signature("getHostname", ("URL",), "string", _host_name, method=True),
    Signature("getPort", ("URL",), "string", _port, method=True),
    Signature("getEscapedPath", ("URL",), "string", lambda a: urlsplit(a["value"]).path, method=True),
    Signature("getQuery", ("URL",), "map(string,list(string))", lambda a: parse_qs(urlsplit(a["value"]).query),
              method=True),
    *(form for item in ("int", "double", "string", "bool", "timestamp", "duration") for form in _listed(item)),
    *(Signature("sum", (f"list({item})",), item, _sum, method=True) for item in ("int", "double", "duration")),
    Signature("indexOf", ("list(dyn)", "dyn"), "int", _index_of, method=True),
    Signature("lastIndexOf", ("list(dyn)", "dyn"), "int", _last_index_of, method=True),
    Signature("find", ("string", "string"), "string", regexes.find, method=True),
    Signature("findAll", ("string", "string"), "list(string)", regexes.find_all, method=True),
    Signature("findAll", ("string", "string", "int"), "list(string)", regexes.find_all, method=True),
    Signature("string", ("IP",), "string", _text_of),
    Signature("string", ("CIDR",), "string", _text_of),
    Signature("cel.@mapInsert", ("map(string,dyn)", "dyn", "dyn"), "dyn", _inserted, internal=True),
    Signature("cel.@mapInsert", ("map(string,dyn)", "map(string,dyn)"), "dyn", _merged, internal=True),
    Signature("jsonpatch.escapeKey", ("string",), "string", lambda text: text.replace("~", "~0").replace("/", "~1")),
    *authorization.FUNCTIONS,
    *formats.FUNCTIONS,
)  # fmt: skip
