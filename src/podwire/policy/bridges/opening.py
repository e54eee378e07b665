"""Decides whether a node needs its pods isolated on bridges, and opens or clears the isolation."""

from podwire.errors import Unsupported
from podwire.observe.log import Log
from podwire.policy.bridges.dataplane import BridgeIsolation, clear
from podwire.policy.dataplane import PolicyDataPlane


def open_isolation(plane: PolicyDataPlane, *, needed: bool) -> BridgeIsolation | None:
    """The data plane with isolation on bridges where pods may be ports of bridges (``needed``); None elsewhere.

    What an earlier agent with other settings left is cleared. A kernel without nftables has no isolation.
    """
    try:
        if needed:
            return BridgeIsolation(plane)
        clear()
    except Unsupported:
        Log("policy").info("cannot isolate pods on the same bridge: the kernel has no nftables")
    return None
