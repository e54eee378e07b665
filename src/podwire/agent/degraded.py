"""What a node does otherwise than it was asked to, and why: told on its Node object.

A part notes one text at a time, an empty one when all is as asked: settings that were refused, a backend or data
plane that the kernel lacks, no room for new connections. The texts of all parts are the annotation
``podwire.io/fallback``, which ``podwire status`` shows, and every new one is an Event of the Node and a line of the
log.
"""

import asyncio
from collections.abc import Callable, Mapping

from podwire.agent.announce import Announcer
from podwire.cluster.names import NODE_FALLBACK
from podwire.kube.events import EventRecorder, reference
from podwire.model.node import Node
from podwire.observe.log import Log

SETTINGS_REFUSED = "SettingsRefused"
FEATURE_MISSING = "FeatureMissing"
BRIDGE_NOT_SEEN = "BridgeNotSeen"
POD_NOT_FOUND = "PodNotFound"
PEER_UNREACHED = "PeerUnreached"
CONNECTION_TABLE_FULL = "ConnectionTableFull"


class Notes:
    """The notes of one agent; ``nodes`` gives the Node objects by name as they are now."""

    def __init__(
        self, announcer: Announcer, events: EventRecorder, node: str, nodes: Callable[[], Mapping[str, Node]]
    ) -> None:
        self._announcer = announcer
        self._events = events
        self._node = node
        self._nodes = nodes
        self._notes: dict[str, tuple[str, str]] = {}
        self._told: dict[str, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        self._changed.set()  # what an earlier agent said may be true no longer
        self._log = Log("agent")

    def note(self, part: str, reason: str, text: str) -> None:
        """Notes ``text`` for a part in place of what it noted before; ``reason`` is that of the Event."""
        if self._notes.get(part, ("", ""))[1] == text:
            return
        if text:
            self._notes[part] = (reason, text)
            self._log.warning("not as asked", part=part, reason=reason, problem=text)
        else:
            del self._notes[part]
        self._changed.set()

    def __str__(self) -> str:
        return "; ".join(text for _, text in self._notes.values())

    async def run(self) -> None:
        """Tells every change until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._announcer.insist({NODE_FALLBACK: str(self)})
            self._tell()

    def _tell(self) -> None:
        node = self._nodes().get(self._node)
        if node is None:
            return
        for part, (reason, text) in self._notes.items():
            if self._told.get(part) != (reason, text):
                self._events.event(reference("v1", "Node", node.metadata), "Warning", reason, text)
        self._told = dict(self._notes)
