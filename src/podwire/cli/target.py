"""Which cluster a command is about: a local one by its name, or that of a kubeconfig."""

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from podwire.errors import ConfigError
from podwire.kube.config import ApiConfig, load_kubeconfig
from podwire.local import credentials, inventory
from podwire.local.topology import Topology


def local_cluster(name: str, kubeconfig: str | None, *, named: bool) -> Topology | None:
    """The local cluster that a command is about; None for a remote cluster. ``named``: the name was typed.

    A kubeconfig belongs to a local cluster if it is in the folder of the cluster, or if it names the API server of the
    cluster.

    Raises: ClusterError when there is no local cluster of that name.
    """
    if named:
        return inventory.existing(name)
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "").split(":")[0]
    if not chosen:
        return inventory.existing(name)
    topologies = [topology for topology in map(inventory.find, inventory.names()) if topology is not None]
    for topology in topologies:
        if Path(chosen).resolve().is_relative_to(Path(topology.state).resolve()):
            return topology
    return _led_to(chosen, topologies)


def _led_to(chosen: str, topologies: list[Topology]) -> Topology | None:
    """The cluster whose API server a copied kubeconfig leads to."""
    with suppress(ConfigError, ValueError):
        given = load_kubeconfig(chosen)
        if not ip_address(given.url.hostname or "").is_loopback:
            return None
        for topology in topologies:
            with suppress(ConfigError):
                if _same(given, load_kubeconfig(credentials.kubeconfig_path(topology, "admin"))):
                    return topology
    return None


def _same(one: ApiConfig, other: ApiConfig) -> bool:
    return (one.server, one.ca) == (other.server, other.ca)
