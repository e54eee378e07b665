"""The addresses and the hardware address that a runtime requests for an interface (pure).

Conventions of CNI name three sources, and a later one replaces an earlier one: ``IP=`` and ``MAC=`` of ``CNI_ARGS``;
``args.cni`` of the configuration; ``runtimeConfig``. Without an address in any of them, the annotation
``podwire.io/addresses`` of the pod counts, but only for its first interface: another cannot have the same addresses.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_interface

from podwire.cni.ipam.pool import Address
from podwire.cni.pinned import pinned
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import INVALID_CONFIG, INVALID_ENVIRONMENT
from podwire.errors import CniError

_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}", re.IGNORECASE)
_GROUP_BIT = 1
"""The bit of the first byte that marks multicast and broadcast addresses (IEEE 802)."""


def addresses(request: CniRequest, *, first: bool) -> tuple[Address, ...]:
    """The requested addresses, at most one of each family; ``first``: the pod has no other interface of podwire.

    Raises: CniError 7 or 4 (``CNI_ARGS``) when the request is not one address of each family.
    """
    if request.conf.runtime_config.ips:
        return _parse("runtimeConfig.ips", request.conf.runtime_config.ips, INVALID_CONFIG)
    if request.conf.args.cni.ips:
        return _parse("args.cni.ips", request.conf.args.cni.ips, INVALID_CONFIG)
    if text := request.args.get("IP", ""):
        return _parse("IP of CNI_ARGS", text.split(","), INVALID_ENVIRONMENT)
    return pinned(request.conf.runtime_config.annotations) if first else ()


def mac(request: CniRequest) -> str:
    """The requested hardware address; empty when none is requested.

    Raises: CniError 7 or 4 (``CNI_ARGS``) when it is not the address of one interface.
    """
    if text := request.conf.runtime_config.mac:
        return _check_mac("runtimeConfig.mac", text, INVALID_CONFIG)
    if text := request.conf.args.cni.mac:
        return _check_mac("args.cni.mac", text, INVALID_CONFIG)
    return _check_mac("MAC of CNI_ARGS", request.args.get("MAC", ""), INVALID_ENVIRONMENT)


def _parse(field: str, texts: Iterable[str], code: int) -> tuple[Address, ...]:
    expected = "expected an address such as 10.244.0.11 or 10.244.0.11/24, and at most one of each family"
    parsed: list[Address] = []
    for text in texts:
        try:
            parsed.append(ip_interface(text.strip()).ip)
        except ValueError as problem:
            raise CniError(code, f"{field}: {text!r} is not an address", expected) from problem
    if len({address.version for address in parsed}) != len(parsed):
        raise CniError(code, f"{field}: two addresses of one family: {', '.join(map(str, parsed))}", expected)
    return tuple(parsed)


def _check_mac(field: str, text: str, code: int) -> str:
    expected = "expected the address of one interface, such as 02:00:00:00:00:11"
    if not text:
        return ""
    if not _MAC.fullmatch(text):
        raise CniError(code, f"{field}: {text!r} is not a hardware address", expected)
    if int(text[:2], 16) & _GROUP_BIT:
        raise CniError(code, f"{field}: {text} is a multicast address", expected)
    if not int(re.sub("[:-]", "", text), 16):
        raise CniError(code, f"{field}: {text} is the address of no interface", expected)
    return text.lower().replace("-", ":")
