"""Connections whose translation an EgressPolicy has changed: they are forgotten, so that their next packet is new.

The kernel translates a connection as its first packet was translated. A connection that began before a policy would
keep the node's address; the rules drop its packets (``plan``), and once the connection is forgotten, its next packet
takes the new way, with the new source. The same holds on the node with the address when the address changes. A pod that
no policy selects any more is translated by no node yet: all its connections to the outside are forgotten.

Connections of other pods and inside the cluster are left alone, and so are connections that have the right source, or
that this node passes on untranslated: an answer that came in between would look like the first packet of a connection
from outside. Cost: one walk through the table of connections for each change that concerns pods.
"""

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import NamedTuple

from podwire.kernel.conntrack import Conntrack, Flow
from podwire.kernel.netns import NetnsPath
from podwire.routing.egress.holder import EgressAssignment
from podwire.routing.nodes import Network


class OutdatedPods(NamedTuple):
    """Addresses of pods whose packets get another source or have other destinations than before."""

    selected: frozenset[str]
    released: frozenset[str]
    """The addresses of pods that no policy selects any more."""


def outdated_pods(before: Iterable[EgressAssignment], now: Iterable[EgressAssignment]) -> OutdatedPods:
    """The pods that a change concerns."""
    old, new = _translations(before), _translations(now)
    selected = frozenset(pod for pod, translation in new.items() if old.get(pod) != translation)
    return OutdatedPods(selected, frozenset(old.keys() - new.keys()))


def _translations(assignments: Iterable[EgressAssignment]) -> dict[str, list[object]]:
    translations: dict[str, list[object]] = {}
    for assignment in assignments:
        for pod in assignment.pods:
            translations.setdefault(pod, []).append(
                (assignment.addresses, assignment.destinations, assignment.excluded)
            )
    return translations


def forget_connections(
    pods: OutdatedPods, addresses: Collection[str], inside: Collection[Network], netns: NetnsPath = None
) -> int:
    """Forgets the connections of pods to addresses outside the networks ``inside``; returns their number.

    ``addresses`` are the egress addresses of all policies: connections with such a source stay.

    Raises: Unsupported, KernelError.
    """
    concerned = pods.selected | pods.released
    if not concerned:
        return 0

    def is_outdated(flow: Flow) -> bool:
        source, translated_source = flow.original.src, flow.reply.dst
        if (
            source not in concerned
            or translated_source in addresses
            or (source in pods.selected and translated_source == source)
        ):
            return False
        destination = ip_address(flow.reply.src)
        return not any(destination in network for network in inside if network.version == destination.version)

    with Conntrack(netns) as conntrack:
        return len(conntrack.forget(is_outdated, concerned))
