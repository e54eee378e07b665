"""Addresses and the pod network that a pod requests with its annotations (pure).

The container runtime passes a pod's annotations to the plugins whose configuration has the capability
``io.kubernetes.cri.pod-annotations``. For an IP family that ``podwire.io/addresses`` does not name, any free address is
chosen. ``podwire.io/network`` names the pod network that the addresses come from; without it that is the default one.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from podwire.cluster.names import POD_ADDRESSES, POD_NETWORK
from podwire.cluster.podnetworks import DEFAULT_NETWORK
from podwire.cni.ipam.pool import Address
from podwire.cni.spec import INVALID_CONFIG
from podwire.errors import CniError


def chosen_network(annotations: Mapping[str, str]) -> str:
    """The name of the pod network that a pod requests."""
    return annotations.get(POD_NETWORK, DEFAULT_NETWORK)


def pinned(annotations: Mapping[str, str]) -> tuple[Address, ...]:
    """The addresses that a pod requests; none without the annotation.

    Raises: CniError 7 when the annotation is not one address, or one address of each family.
    """
    text = annotations.get(POD_ADDRESSES)
    if text is None:
        return ()
    expected = "expected an address such as 10.244.0.11, or one of each family with a comma between them"
    addresses: list[Address] = []
    for item in text.split(","):
        try:
            addresses.append(ip_address(item.strip()))
        except ValueError as problem:
            message = f"annotation {POD_ADDRESSES}: {item.strip()!r} is not an address"
            raise CniError(INVALID_CONFIG, message, expected) from problem
    if len({address.version for address in addresses}) != len(addresses):
        raise CniError(
            INVALID_CONFIG, f"annotation {POD_ADDRESSES}: {text!r} has two addresses of one family", expected
        )
    return tuple(addresses)
