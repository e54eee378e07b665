"""How ``podwire why`` follows a packet past a bridge of pods: by the bridges' table, and by the rules of IP.

What a pod sends comes in by its port, where the bridges' table looks at its address. To another port of the bridge it
is forwarded as a frame, past the same table's ``forward``, and past the hooks of IP only where ``br_netfilter`` shows
it there. Whatever goes elsewhere, or to a Service first, is routed, and passes the hooks of IP anyway.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from podwire.errors import Unsupported
from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.policy.bridges.layout import FAMILY, TABLE, Port, table
from podwire.policy.foreign.kernel import KernelLinks
from podwire.policy.foreign.locate import PodLink, locate
from podwire.state.nft import Table
from podwire.trace import nft
from podwire.trace.packet import Machine, Outcome, Packet, Step, Tracer

_PLACE = f"{FAMILY} {TABLE}"
_FORWARD = "forward"


class BridgePorts(msgspec.Struct, frozen=True, kw_only=True):
    """What bridges of one node make of pods."""

    places: Mapping[str, PodLink]
    """Bridge and port of those that are ports of bridges, by their keys."""
    addresses: Mapping[str, PodLink]
    """The same by the pods' addresses."""
    unseen: Mapping[str, Mapping[str, str]]
    """By bridge: the families whose packets between its ports pass no hook of IP, and why."""
    held: Table | None
    """What the kernel holds for bridges."""


def read(netns: NetnsPath, pods: Mapping[str, Collection[str]]) -> BridgePorts | None:
    """What there is to know of the bridges of pods, given with their addresses; None: they are ports of none.

    Raises: KernelError.
    """
    place = Path(netns) if netns is not None else None
    found = locate(pods, *KernelLinks(place).read(), {})
    places = {pod: each for pod, each in found.items() if each.port}
    if not places:
        return None
    with Netlink(netns) as netlink:
        unseen = {each.device: bridges.unseen(netlink, each.device) for each in places.values()}
    return BridgePorts(
        places=places,
        addresses={address: each for pod, each in places.items() for address in pods[pod]},
        unseen=unseen,
        held=_held(netns),
    )


def _held(netns: NetnsPath) -> Table | None:
    try:
        with Nft(netns) as kernel:
            return kernel.read(FAMILY, TABLE)
    except Unsupported:
        return None  # without bridge tables in the kernel, no port is checked or cut off


def planned(ports: BridgePorts, selected: Collection[str], pods: Mapping[str, Collection[str]]) -> Table | None:
    """What should be held of these pods; ``selected`` are those that a policy selects."""
    return table(
        Port(
            name=place.port,
            addresses=tuple(pods[pod]),
            shut=frozenset(ports.unseen[place.device]) if pod in selected else frozenset(),
        )
        for pod, place in sorted(ports.places.items(), key=lambda item: item[1].port)
    )


class BridgeTracer:
    """Rules of IP, those of bridges before them, and who is a port of which bridge."""

    def __init__(self, plane: Tracer | None, own: Table | None, ports: BridgePorts, machine: Machine) -> None:
        """``own`` is the bridges' table."""
        self._plane = plane
        self._frames = nft.Tracer([own] if own is not None else [], machine)
        self._ports = ports

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """What happens to a packet."""
        came = self._port(packet.source, packet.input)
        if came is None:
            yield from self._routed(packet)
            return
        goes = self._port(packet.destination, packet.output) if packet.sent_to in ("", packet.destination) else None
        frame = msgspec.structs.replace(packet, input=came.port, output=goes.port if goes is not None else "")
        first = self._frames.hook(frame, "prerouting")
        if first.verdict != "accept":
            yield first
            return
        if goes is None or goes.device != came.device:
            yield from (_with(first.steps, (), routed) for routed in self._routed(packet))
            return
        then = self._frames.hook(frame, _FORWARD)
        if then.verdict != "accept" or packet.family in self._ports.unseen[came.device]:
            yield _with(first.steps, (), then)
            return
        yield from (_with(first.steps, then.steps, routed) for routed in self._routed(packet))

    def _port(self, address: str, device: str) -> PodLink | None:
        """The port that a pod is, where packets of its address come or go by that bridge."""
        found = self._ports.addresses.get(address)
        return found if found is not None and found.device == device else None

    def _routed(self, packet: Packet) -> Iterator[Outcome]:
        if self._plane is None:
            return iter((Outcome(verdict="accept", packet=packet),))
        return self._plane.outcomes(packet)

    def about(self, step: Step) -> str:
        """What a step stands for."""
        if step.table != _PLACE:
            return self._plane.about(step) if self._plane is not None else ""
        if step.chain == _FORWARD:
            return f"pods that policies select are cut off from the other pods of their bridge: {self._why()}"
        return "addresses of pods belong to their ports of the bridge"

    def _why(self) -> str:
        reasons = (why for missing in self._ports.unseen.values() for why in missing.values())
        return " and ".join(dict.fromkeys(reasons)) or "the kernel shows what they send each other now"


def _with(first: tuple[Step, ...], then: tuple[Step, ...], outcome: Outcome) -> Outcome:
    """An outcome, with the steps of frames at the hooks where they are: at each, IP is shown a frame behind them."""
    early = tuple(step for step in outcome.steps if step.hook == "prerouting")
    late = outcome.steps[len(early) :]
    middle = then if late or outcome.verdict == "accept" else ()
    return msgspec.structs.replace(outcome, steps=(*first, *early, *middle, *late))
