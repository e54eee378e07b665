"""Which cluster a command is about: a local one by its name, or that of a kubeconfig."""

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from podwire.errors import ConfigError
from podwire.local import inventory
from podwire.local.topology import Topology

if TYPE_CHECKING:
    from podwire.kube.config import ApiConfig

DEFAULT = "podwire"
"""The cluster of commands that name none."""


def running_cluster(name: str | None) -> Topology:
    """The local cluster of that name; without a name that of ``$KUBECONFIG``, or the default one where that is not set.

    Raises: ClusterError when there is no local cluster of that name; ConfigError when ``$KUBECONFIG`` leads to none.
    """
    if name is not None:
        return inventory.existing(name)
    found = local_cluster(DEFAULT, None, named=False)
    if found is not None:
        return found
    file, here = _chosen(None), ", ".join(inventory.names())
    todo = f"give --name (clusters here: {here}) or unset KUBECONFIG" if here else "`podwire up` makes a local cluster"
    try:
        given = _load(file)
    except ConfigError as failure:
        raise ConfigError("KUBECONFIG", "", f"{failure}; {todo}") from failure
    problem = f"context {given.context!r} leads to {given.server}, which is no local cluster of this machine"
    raise ConfigError("KUBECONFIG", file, f"{problem}; {todo}")


def local_cluster(name: str, kubeconfig: str | None, *, named: bool) -> Topology | None:
    """The local cluster that a command is about; None for a remote cluster. ``named``: the name was typed.

    A kubeconfig belongs to a local cluster if it is in the folder of the cluster, or if it names the API server of the
    cluster.

    Raises: ClusterError when there is no local cluster of that name.
    """
    chosen = _chosen(kubeconfig)
    if named or not chosen:
        return inventory.existing(name)
    topologies = [topology for topology in map(inventory.find, inventory.names()) if topology is not None]
    for topology in topologies:
        if Path(chosen).resolve().is_relative_to(Path(topology.state).resolve()):
            return topology
    return _led_to(chosen, topologies)


def _chosen(kubeconfig: str | None) -> str:
    """The file of the option, or of ``$KUBECONFIG``; empty when neither is given."""
    if kubeconfig or not os.environ.get("KUBECONFIG"):
        return kubeconfig or ""
    from podwire.kube.config import named_kubeconfig

    return named_kubeconfig(os.environ)


def _load(file: Path | str) -> "ApiConfig":
    from podwire.kube.config import load_kubeconfig

    return load_kubeconfig(file)


def _led_to(chosen: str, topologies: list[Topology]) -> Topology | None:
    """The cluster whose API server a copied kubeconfig leads to."""
    from podwire.local import credentials

    with suppress(ConfigError, ValueError):
        given = _load(chosen)
        if not ip_address(given.url.hostname or "").is_loopback:
            return None
        for topology in topologies:
            with suppress(ConfigError):
                if _same(given, _load(credentials.kubeconfig_path(topology, "admin"))):
                    return topology
    return None


def _same(one: "ApiConfig", other: "ApiConfig") -> bool:
    return (one.server, one.ca) == (other.server, other.ca)
