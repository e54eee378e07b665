"""The elements of sets and maps for the device of a pod (pure); :mod:`.layout` describes the table."""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from podwire.policy.dataplanes.nftables.layout import SHARED, TableLayout, leading_to
from podwire.state.nft import Element
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import pack


class PodElements:
    """The elements of pods in the table of one family."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout

    def of_device(self, device: str, addresses: tuple[str, ...], chains: "Chains") -> dict[str, dict[bytes, Element]]:
        """The elements for a pod's device, by the name of the set."""
        name, own = device_key(device), self._own(addresses)
        return {
            **self.leading(device, addresses, chains, "Ingress"),
            **self.leading(device, addresses, chains, "Egress"),
            **(
                {"self": {source + destination: Element() for source in own for destination in own}}
                if device in self._layout.bridges
                else {"pod-devices": {name: Element()}, "own": {name + address: Element() for address in own}}
            ),
        }

    def leading(
        self, device: str, addresses: tuple[str, ...], chains: "Chains", direction: str
    ) -> dict[str, dict[bytes, Element]]:
        """Those elements of :meth:`of_device` that lead to the chains of one direction."""
        name, own = device_key(device), self._own(addresses)
        if direction == "Ingress":
            element = _leads(chains.ingress)
            return (
                {"bridged": dict.fromkeys(own, element)}
                if device in self._layout.bridges
                else {"ingress": {name: element}}
            )
        sources, egress = [name + address for address in own], _leads(chains.egress)
        return {
            "egress": dict.fromkeys(sources, egress),
            SHARED: dict.fromkeys(own, egress),
            "to-node": dict.fromkeys(sources, _leads(chains.to_node)),
        }

    def _own(self, addresses: Iterable[str]) -> list[bytes]:
        """The addresses of this family, as keys."""
        return [
            self._layout.key(address) for address in addresses if (":" in address) == (self._layout.family == "ip6")
        ]


class Chains(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The chains that the elements of a pod's device jump to; empty: no policy applies."""

    ingress: str
    egress: str
    to_node: str


def _leads(chain: str) -> Element:
    return leading_to(chain) if chain else Element(verdict=Verdict("accept"))


@lru_cache(maxsize=1 << 12)
def device_key(device: str) -> bytes:
    """The key of a device in a set."""
    return pack(("ifname",), (device,))
