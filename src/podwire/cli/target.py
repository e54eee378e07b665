"""Chooses the cluster of a command: the local cluster of a name, or the cluster of a kubeconfig."""

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
    """The local cluster of a name; without a name the cluster of ``$KUBECONFIG``, or ``podwire`` without the variable.

    Raises: ClusterError when there is no local cluster of that name; ConfigError when ``$KUBECONFIG`` leads to no local
    cluster.
    """
    if name is not None:
        return inventory.existing(name)
    topology = local_cluster(DEFAULT, None, named=False)
    if topology is not None:
        return topology
    file, here = _chosen(None), ", ".join(inventory.names())
    todo = f"give --name (clusters here: {here}) or unset KUBECONFIG" if here else "`podwire up` makes a local cluster"
    try:
        api = _load(file)
    except ConfigError as failure:
        raise ConfigError("KUBECONFIG", "", f"{failure}; {todo}") from failure
    problem = f"context {api.context!r} leads to {api.server}, which is no local cluster of this machine"
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
    return _cluster_of_server(chosen, topologies)


def _chosen(kubeconfig: str | None) -> str:
    """The file of the option, or of ``$KUBECONFIG``; empty when neither is given."""
    if kubeconfig or not os.environ.get("KUBECONFIG"):
        return kubeconfig or ""
    from podwire.kube.config import named_kubeconfig

    return named_kubeconfig(os.environ)


def _load(file: Path | str) -> "ApiConfig":
    from podwire.kube.config import load_kubeconfig

    return load_kubeconfig(file)


def _cluster_of_server(chosen: str, topologies: list[Topology]) -> Topology | None:
    """The cluster whose API server a copied kubeconfig leads to."""
    from podwire.local import credentials

    with suppress(ConfigError, ValueError):
        api = _load(chosen)
        if not ip_address(api.url.hostname or "").is_loopback:
            return None
        for topology in topologies:
            with suppress(ConfigError):
                if _is_same_server(api, _load(credentials.kubeconfig_path(topology, "admin"))):
                    return topology
    return None


def _is_same_server(a: "ApiConfig", b: "ApiConfig") -> bool:
    return (a.server, a.ca) == (b.server, b.ca)
