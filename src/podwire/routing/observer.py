"""The sessions with peers that a backend's child processes have, as the page ``/sessions`` and a summary on the Node.

Guarantees: 1. the sessions are read every :data:`EVERY_S` while the backend is in use; 2. the summary is announced when
it has changed. Cost: one process of 2 ms per reading, and one write of the Node for a session that comes or goes.
"""

from collections.abc import Awaitable, Callable, Iterator

import msgspec

from podwire.bgp.sessionstate import SessionState, summary
from podwire.cluster.names import NODE_SESSIONS
from podwire.model.node import Node
from podwire.routing.router import Router
from podwire.runtime.clock import Clock
from podwire.runtime.registry import Registry

EVERY_S = 3.0

READERS: Registry[Callable[[str], Awaitable[tuple[SessionState, ...]]]] = Registry(
    "reader of sessions", "routing.backend", {"bgp": "podwire.routing.backends.bgp.observe:read_sessions"}
)
"""By backend: from the directory of the child processes to their sessions."""


class SessionObserver:
    """Reads the sessions of one node; ``announce`` writes annotations to the Node."""

    def __init__(
        self,
        router: Router,
        clock: Clock,
        node: Callable[[], Node | None],
        announce: Callable[[dict[str, str]], Awaitable[None]],
    ) -> None:
        self.sessions: tuple[SessionState, ...] = ()
        self._router = router
        self._clock = clock
        self._node = node
        self._announce = announce

    async def run(self) -> None:
        """Reads and announces until cancelled."""
        while True:
            await self.observe()
            await self._clock.sleep(EVERY_S)

    async def observe(self) -> None:
        """Reads the sessions once, and announces a summary that the Node does not have."""
        plan = self._router.plan
        states: tuple[SessionState, ...] = ()
        for name in READERS if plan is not None and plan.children else ():
            states += await READERS.load(name)(self._router.own.run_dir)
        self.sessions = states
        node, text = self._node(), summary(states)
        if node is not None and text != node.metadata.annotations.get(NODE_SESSIONS, ""):
            await self._announce({NODE_SESSIONS: text})

    def page(self) -> Iterator[str]:
        """The sessions, one JSON object each line."""
        return (msgspec.json.encode(session).decode() for session in self.sessions)
