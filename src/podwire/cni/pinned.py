"""Addresses that a pod asks for: its annotation ``podwire.io/addresses`` (pure).

The container runtime hands the pod's annotations to plugins that say so in their configuration (capability
``io.kubernetes.cri.pod-annotations``). A family that the annotation does not name gets an address as usual.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from podwire.cluster.names import POD_ADDRESSES
from podwire.cni.ipam.pool import Address
from podwire.cni.spec import INVALID_CONFIG
from podwire.errors import CniError


def pinned(annotations: Mapping[str, str]) -> tuple[Address, ...]:
    """The addresses that a pod asks for; none without the annotation.

    Raises: CniError 7 when it is not one address, or one of each family.
    """
    text = annotations.get(POD_ADDRESSES)
    if text is None:
        return ()
    expected = "expected an address such as 10.244.0.11, or one of each family with a comma between them"
    found: list[Address] = []
    for word in text.split(","):
        try:
            found.append(ip_address(word.strip()))
        except ValueError as problem:
            what = f"annotation {POD_ADDRESSES}: {word.strip()!r} is not an address"
            raise CniError(INVALID_CONFIG, what, expected) from problem
    if len({address.version for address in found}) != len(found):
        raise CniError(INVALID_CONFIG, f"annotation {POD_ADDRESSES}: {text!r} has two of a family", expected)
    return tuple(found)
