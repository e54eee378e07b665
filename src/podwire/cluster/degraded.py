"""Degraded mode of a node: reports on the Node object which settings the node cannot follow, and why.

A part reports one problem at a time, and an empty text when the problem is over: refused settings, a backend or data
plane that the kernel lacks, no room for new connections. The texts of all parts are the annotation
``podwire.io/fallback``, which ``podwire status`` shows, and every new text is an Event of the Node and a line of the
log.
"""

import asyncio
from collections.abc import Callable, Mapping

from podwire.cluster.announcer import Announcer
from podwire.cluster.names import NODE_FALLBACK
from podwire.kube.events import EventRecorder, reference
from podwire.model.node import Node
from podwire.observe.log import Log

SETTINGS_REFUSED = "SettingsRefused"
FEATURE_MISSING = "FeatureMissing"
BRIDGE_NOT_SEEN = "BridgeNotSeen"
POD_NOT_FOUND = "PodNotFound"
PEER_UNREACHED = "PeerUnreached"
FORWARD_BLOCKED = "ForwardBlocked"
INPUT_BLOCKED = "InputBlocked"
MTU_MISMATCH = "MTUMismatch"
CHECKSUMS_WRONG = "ChecksumsWrong"
CLIENTS_HIDDEN = "ClientsHidden"
CONNECTION_TABLE_FULL = "ConnectionTableFull"
STATE_NOT_WRITTEN = "StateNotWritten"


class DegradedModes:
    """The problems of one agent's parts; ``nodes`` returns the present Node objects by name."""

    def __init__(
        self, announcer: Announcer, events: EventRecorder, node: str, nodes: Callable[[], Mapping[str, Node]]
    ) -> None:
        self._announcer = announcer
        self._events = events
        self._node = node
        self._nodes = nodes
        self._problems: dict[str, tuple[str, str]] = {}
        self._published: dict[str, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        self._changed.set()  # The annotation may be one of an earlier agent.
        self._log = Log("agent")

    def report(self, part: str, reason: str, text: str) -> None:
        """Sets the problem of a part, empty when it has none; ``reason`` is that of the Event."""
        if self._problems.get(part, ("", ""))[1] == text:
            return
        if text:
            self._problems[part] = (reason, text)
            self._log.warning("running in degraded mode", part=part, reason=reason, problem=text)
        else:
            del self._problems[part]
        self._changed.set()

    def __str__(self) -> str:
        return "; ".join(text for _, text in self._problems.values())

    async def run(self) -> None:
        """Publishes every change until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._announcer.insist({NODE_FALLBACK: str(self)})
            self._record_events()

    def _record_events(self) -> None:
        node = self._nodes().get(self._node)
        if node is None:
            return
        for part, (reason, text) in self._problems.items():
            if self._published.get(part) != (reason, text):
                self._events.event(reference("v1", "Node", node.metadata), "Warning", reason, text)
        self._published = dict(self._problems)
