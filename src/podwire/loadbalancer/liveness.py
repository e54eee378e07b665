"""Which nodes are alive, by the Leases that their agents renew (pure).

Every agent measures by its own clock how long it has observed no renewal of a node. It counts only time in which it
would have observed one: while its own renewals come back to it through the watch. So an agent that was cut off, or
whose watch hangs, declares nobody dead; after it is connected again, it waits for the whole time.

The holder of an address stops to answer :data:`HOLD_S` after it began its last renewal that succeeded. Its kernel stops
at the latest :data:`KERNEL_S` after that moment, also when the agent is gone. Another node takes over :data:`EXPIRY_S`
after it observed the last renewal, which is later. So no two nodes answer at once.

While no Service has an address, nodes renew every :data:`IDLE_RENEW_S`, and those that were alive last stay so. With
the first address all renew at once, and a node that died meanwhile is dead :data:`EXPIRY_S` later.

While the API is away, no node can renew, and none can take over either. A node keeps its addresses then, as long as all
other nodes that were alive say that they have no contact to the API, too (:func:`all_without_contact`).
"""

from collections.abc import Collection, Mapping

RENEW_S = 1.0
"""The time between two renewals of a Lease while a Service has an address."""
IDLE_RENEW_S = 10.0
"""The time between two renewals while no Service has one: then there is nothing to take over, and nobody is dead."""
HOLD_S = 3.0
"""How long a node holds its addresses after the begin of its last renewal that succeeded."""
_GRANT_S = 3.3
"""The end of the lifetime of addresses in the kernel, from the same moment; lifetimes are whole seconds."""
KERNEL_S = _GRANT_S + 1.0
"""The kernel may be a second late (``kernel.leased_addresses``)."""
EXPIRY_S = KERNEL_S + 0.1
"""After how long without a renewal a node is dead."""
CONTACT_S = 1.5
"""A node has contact to the API if a renewal succeeded within this time: well before HOLD_S all nodes know who has."""
HEARD_S = 1.0
"""How old a message of another node may be."""
OLD_S = 30.0
"""A Lease whose time of renewal is longer ago, by the clocks of the nodes, is dead when it is first read."""
_ECHO_S = 2.0
"""The longest time between two own renewals in the watch of an agent that is connected."""


def lifetime_s(contact: float, now: float) -> int:
    """The lifetime of addresses in the kernel, in whole seconds; 0: too late for any.

    ``contact`` is the moment at which the last renewal that succeeded began.
    """
    return max(0, int(_GRANT_S - (now - contact)))


class SpeakerLiveness:
    """The renewals as one agent observes them; times are seconds of its monotonic clock."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._observed: dict[str, tuple[str, float]] = {}
        """The last renewal of each node, and when it was observed."""
        self._connected_since: float | None = None
        self._alive: frozenset[str] = frozenset()

    def observe(self, node: str, renewal: str | None, now: float, *, is_old: bool = False) -> None:
        """Takes over the time of renewal in a node's Lease; None: the Lease is gone. ``is_old``: it is long ago."""
        if renewal is None:
            self._observed.pop(node, None)
            self._alive -= {node}
            return
        known = self._observed.get(node)
        if known is not None and known[0] == renewal:
            return
        if node == self._me and (known is None or self._connected_since is None or now - known[1] > _ECHO_S):
            self._connected_since = now
        self._observed[node] = (renewal, now)
        if known is not None or not is_old:
            self._alive |= {node}

    def alive(self, now: float) -> frozenset[str]:
        """The nodes that are alive; those that were so last while this agent cannot tell."""
        echo = self._observed.get(self._me)
        if echo is None or self._connected_since is None or now - echo[1] > _ECHO_S:
            self._connected_since = None
            return self._alive
        since = self._connected_since
        dead = {node for node, (_, at) in self._observed.items() if now - max(at, since) > EXPIRY_S}
        self._alive -= dead
        return self._alive

    def disconnect(self) -> None:
        """Declares nobody dead before the whole time has passed again.

        It is called before another node is told that this one has no contact to the API, which keeps its addresses for
        that reason.
        """
        self._connected_since = None

    def is_connected(self, now: float) -> bool:
        """Whether own renewals come back through the watch."""
        echo = self._observed.get(self._me)
        return self._connected_since is not None and echo is not None and now - echo[1] <= _ECHO_S


def all_without_contact(
    alive: Collection[str], me: str, messages: Mapping[str, tuple[float, bool]], now: float
) -> bool:
    """Whether every other node that was alive said within :data:`HEARD_S` that it has no contact to the API.

    ``messages`` has for each node when its last message came, and whether it has contact.
    """
    for node in alive:
        if node == me:
            continue
        at, contact = messages.get(node, (float("-inf"), True))
        if contact or now - at > HEARD_S:
            return False
    return True
