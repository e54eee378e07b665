"""What a routing backend is.

A backend turns this node and the peers that it is to reach into the state that the node's kernel should hold:
always the whole state, so there is nothing to add or take away. A plan for no peers is what the node needs in
order to receive from others.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from podwire.routing.nodes import Me, Peer
from podwire.state.network import NetworkState


class Options(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The routing part of the cluster's settings.

    ``backend`` is a name of the registry. ``direct_routing`` makes ``vxlan`` send to peers of the same subnet
    without encapsulation. ``mtu`` is that of the pods in bytes, 0 means as large as the underlay allows.
    ``vni`` and ``port`` are those of VXLAN. ``masquerade`` gives traffic that leaves the cluster the node's
    address.
    """

    backend: str = "vxlan"
    direct_routing: bool = False
    mtu: int = 0
    vni: int = 4096
    port: int = 8472
    masquerade: bool = True


class Backend(Protocol):
    """One way to carry packets between nodes."""

    name: str
    feature: str
    """The kernel feature that it needs, as in ``kernel.features``; empty: none that a kernel can be without."""

    def __init__(self, options: Options) -> None: ...

    def announce(self, me: Me) -> str:
        """What peers must know of this node's device: its hardware address, or nothing."""
        ...

    def plan(self, me: Me, peers: Sequence[Peer]) -> NetworkState:
        """The kernel state that carries packets to ``peers`` and receives from all."""
        ...

    def reaches(self, me: Me, peer: Peer) -> str:
        """Empty when packets can be carried to ``peer``, else why not."""
        ...

    def overhead(self, me: Me) -> int:
        """Bytes that encapsulation adds to a packet."""
        ...

    async def run(self) -> None:
        """Work that no kernel does, until cancelled; returns at once when there is none."""
        ...
