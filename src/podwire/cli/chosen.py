"""Which cluster a command is about: a local one by its name, or that of a kubeconfig."""

import os
from pathlib import Path

from podwire.local import places
from podwire.local.layout import Layout


def local_cluster(name: str, kubeconfig: str | None, *, named: bool) -> Layout | None:
    """The local cluster that is meant; None for one that is not local. ``named``: the name was typed.

    Raises: ClusterError when there is no local cluster of that name.
    """
    if named:
        return places.existing(name)
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "").split(":")[0]
    if not chosen:
        return places.existing(name)
    for one in places.names():
        layout = places.find(one)
        if layout is not None and Path(chosen).resolve().is_relative_to(Path(layout.state).resolve()):
            return layout
    return None
