"""Which cluster a command is about: a local one by its name, or that of a kubeconfig."""

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from podwire.errors import ConfigError
from podwire.kube.config import ApiConfig, load_kubeconfig
from podwire.local import credentials, inventory
from podwire.local.layout import Layout


def local_cluster(name: str, kubeconfig: str | None, *, named: bool) -> Layout | None:
    """The local cluster that is meant; None for one that is not local. ``named``: the name was typed.

    A kubeconfig is a local cluster's by its place, or, where it was copied, by the API server that it leads to.

    Raises: ClusterError when there is no local cluster of that name.
    """
    if named:
        return inventory.existing(name)
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "").split(":")[0]
    if not chosen:
        return inventory.existing(name)
    layouts = [layout for layout in map(inventory.find, inventory.names()) if layout is not None]
    for layout in layouts:
        if Path(chosen).resolve().is_relative_to(Path(layout.state).resolve()):
            return layout
    return _led_to(chosen, layouts)


def _led_to(chosen: str, layouts: list[Layout]) -> Layout | None:
    """The cluster whose API server a copied kubeconfig leads to."""
    with suppress(ConfigError, ValueError):
        given = load_kubeconfig(chosen)
        if not ip_address(given.url.hostname or "").is_loopback:
            return None
        for layout in layouts:
            with suppress(ConfigError):
                if _same(given, load_kubeconfig(credentials.kubeconfig_path(layout, "admin"))):
                    return layout
    return None


def _same(one: ApiConfig, other: ApiConfig) -> bool:
    return (one.server, one.ca) == (other.server, other.ca)
