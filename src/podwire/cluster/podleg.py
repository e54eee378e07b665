"""The second interface of pods (pure): routing plans it, CNI gives it to the pods."""

import msgspec


class PodLeg(msgspec.Struct, frozen=True, gc=False):
    """The second interface of each pod: a device on ``uplink``, with the pod's own addresses.

    ``mtu`` is in bytes; packets to ``networks`` leave by the leg, and those to the networks of ``gateways``, which are
    pairs of a network and its next hop; all others leave by the pod's first interface. ``kind`` and ``mode`` are those
    of the device; an ipvlan device has the hardware address of its uplink.
    """

    uplink: str
    mtu: int
    networks: tuple[str, ...] = ()
    gateways: tuple[tuple[str, str], ...] = ()
    kind: str = "macvlan"
    mode: str = "bridge"
