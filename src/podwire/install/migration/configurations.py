"""The configurations of other CNI plugins: which directory of ``host-local`` has their addresses. Pure.

A configuration of Flannel's plugin delegates to ``bridge`` and ``host-local`` under its own network name. Sources:
plugins/ipam/host-local/backend/disk of containernetworking (``/var/lib/cni/networks/<network>``), the plugin
``flannel``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_DIRECTORY = "/var/lib/cni/networks"
SUFFIXES = (".conflist", ".conf", ".json")
"""The files that a container runtime reads, by their ends."""
SAVED = ".podwire-saved"
"""The suffix of a configuration that a migration has moved away."""


def host_local(text: str) -> str:
    """The directory of ``host-local`` that a configuration uses; empty when it uses none or cannot be read."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return ""
    if not isinstance(document, dict):
        return ""
    for plugin in _plugins(document):
        ipam = plugin.get("ipam") or {}
        if plugin.get("type") == "flannel" or (isinstance(ipam, dict) and ipam.get("type") == "host-local"):
            directory = str(ipam.get("dataDir") or _DIRECTORY) if isinstance(ipam, dict) else _DIRECTORY
            return f"{directory}/{document.get('name', '')}"
    return ""


def _plugins(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    plugins = document.get("plugins")
    for plugin in plugins if isinstance(plugins, list) else [document]:
        if isinstance(plugin, dict):
            yield plugin
