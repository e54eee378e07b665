"""The proxy data planes by name; the class is imported when it is chosen."""

import importlib
from pathlib import Path
from typing import Any

from podwire.proxy.servicemap import NodeFacts

DATAPLANES = {
    "nftables": "podwire.proxy.dataplanes.nftables.dataplane:NftablesDataPlane",
}

FEATURES = {"nftables": "nftables"}
"""The kernel feature that each needs, as in ``kernel.features``."""


def open_dataplane(name: str, facts: NodeFacts, netns: Path | str | None = None) -> Any:
    """The data plane of that name in a network namespace (None: that of this thread).

    Raises: KeyError for a name that is not in the registry; KernelError.
    """
    module, _, attribute = DATAPLANES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(facts, netns)
