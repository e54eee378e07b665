"""Which settings of a network configuration podwire refuses (pure).

A setting that would be ignored in silence is refused with code 2 and named with its value. A runtime passes only those
``runtimeConfig`` entries that the plugin's ``capabilities`` declare, so an entry that podwire does not have is an error
of the configuration. Unknown settings elsewhere are ignored, as by all plugins: later versions of the specification add
some.
"""

from typing import Any

import msgspec

from podwire.cni.spec import POD_ANNOTATIONS, UNSUPPORTED_FIELD
from podwire.errors import CniError

RUNTIME_CONFIG = frozenset(
    name.casefold() for name in ("portMappings", "ips", "mac", "dns", POD_ANNOTATIONS, "cgroupPath")
)
"""Entries of ``runtimeConfig`` that podwire uses, and one that only informs (``cgroupPath``)."""

_FOREIGN = {
    name.casefold(): hint
    for name, hint in {
        "ipMasq": "the agent's setting masquerade does this",
        "mtu": "the MTU of pods follows that of the node's network",
        "bridge": "cni.link of the agent's configuration chooses between a device for each pod and a bridge",
        "vlan": "the pod networks of the routing backend vlan do this",
        "master": "the routing backends macvlan and ipvlan use devices of the node",
        "device": "podwire makes the devices of pods itself",
        "deviceID": "podwire makes the devices of pods itself",
        "promiscMode": "a pod of podwire reaches its own Services without it",
    }.items()
}
"""Settings of other plugins that change the network of a pod."""


def check(document: dict[str, Any]) -> None:
    """Checks that podwire can do what a configuration demands.

    Raises: CniError 2 that names the first setting that podwire does not have.
    """
    for name, value in document.items():
        if name.casefold() == "runtimeconfig" and isinstance(value, dict):
            for entry, content in value.items():
                if entry.casefold() not in RUNTIME_CONFIG and not is_empty(content):
                    detail = "take the capability out of the network configuration; podwire has portMappings, ips,"
                    raise _unsupported(f"runtimeConfig.{entry}", content, f"{detail} mac and dns")
        elif name.casefold() in _FOREIGN and not is_empty(value):
            raise _unsupported(name, value, _FOREIGN[name.casefold()])


def is_empty(value: object) -> bool:
    """Whether a setting has the value that Go gives an absent one, in all of its entries."""
    if isinstance(value, dict):
        return all(is_empty(item) for item in value.values())
    return not value


def _unsupported(name: str, value: object, hint: str) -> CniError:
    text = msgspec.json.encode(value).decode()
    return CniError(UNSUPPORTED_FIELD, f"podwire does not support {name}: {text[:200]}", hint)
