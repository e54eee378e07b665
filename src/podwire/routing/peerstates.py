"""Keeps the state that follows from a single peer while the peer is unchanged: a plan costs only the changed peers.

Each change of one peer leads to a plan for all peers. :class:`PeerMemory` returns the peers that differ from those of
the last plan; :class:`PeerResults` keeps a value for each peer, and :class:`PeerStates` the objects that a backend
plans for each peer, with the state that consists of them. All compare a *basis*, too, which is everything else on which
the result depends: when the basis differs, everything is computed again. Cost: 10 ns for each unchanged peer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from podwire.routing.nodes import Peer
from podwire.state.assembly import Assembly
from podwire.state.network import NetworkState, Object
from podwire.state.ordered import difference

T = TypeVar("T")


class PeerChanges(NamedTuple):
    """The peers that are gone or were different, and those that are new or different now.

    ``anew``: the basis differs, so nothing from before can be used; ``new`` are all peers then, and none is gone.
    """

    anew: bool
    gone: Sequence[Peer]
    new: Sequence[Peer]


class PeerMemory:
    """The peers and the basis for which something was made."""

    def __init__(self) -> None:
        self._basis: object = None
        self._peers: tuple[Peer, ...] | None = None

    def compare(self, peers: Sequence[Peer], basis: object) -> PeerChanges:
        """The difference to the known peers; the names of peers are different from each other, and in order."""
        if self._peers is None or basis != self._basis:
            return PeerChanges(anew=True, gone=(), new=peers)
        gone, new = difference(self._peers, tuple(peers), attrgetter("name"))
        return PeerChanges(anew=False, gone=gone, new=new)

    def keep(self, peers: Sequence[Peer], basis: object) -> None:
        """To be called when the difference is taken over."""
        self._peers, self._basis = tuple(peers), basis


class PeerResults(Generic[T]):
    """A value for each peer, by the peer's name."""

    def __init__(self) -> None:
        self._known = PeerMemory()
        self._values: dict[str, T] = {}

    def take(self, peers: Sequence[Peer], basis: object, make: Callable[[Peer], T]) -> Mapping[str, T]:
        """The values of all peers; ``make``, which gives that of one, depends on the peer and the basis alone."""
        changes = self._known.compare(peers, basis)
        added = {peer.name: make(peer) for peer in changes.new}
        if changes.anew:
            self._values = {}
        for peer in changes.gone:
            del self._values[peer.name]
        self._values |= added
        self._known.keep(peers, basis)
        return self._values


class PeerStates:
    """The objects of each peer, and the state that consists of all of them."""

    def __init__(self) -> None:
        self._known = PeerMemory()
        self._objects: dict[str, tuple[Object, ...]] = {}
        self._assembly = Assembly()

    def merged(self, peers: Sequence[Peer], basis: object, make: Callable[[Peer], Iterable[Object]]) -> NetworkState:
        """The state of all peers; ``make``, which gives the objects of one, depends on the peer and the basis alone."""
        changes = self._known.compare(peers, basis)
        added = {peer.name: tuple(make(peer)) for peer in changes.new}
        if changes.anew:
            self._objects, self._assembly = {}, Assembly()
        removed = [value for peer in changes.gone for value in self._objects.pop(peer.name)]
        self._objects |= added
        self._known.keep(peers, basis)
        return self._assembly.change(removed, (value for objects in added.values() for value in objects))
