"""What an agent writes to its Node object: the routing annotation, and that the node's network is there.

Both are compared with what the object says already, so an idle agent writes nothing. ``NetworkUnavailable`` is
the condition that keeps the scheduler away (by its taint) until somebody has made the network; nobody else clears it.

An agent in kube-proxy's place may have kube-proxy's role, which does not write to Nodes: then the Node says nothing,
and the API is not asked again and again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import NODES
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import rfc3339

_CONDITION = "NetworkUnavailable"
_FORBIDDEN = 403


class Announcer:
    """Writes one Node object."""

    def __init__(self, client: Client, node: str, nodes: Callable[[], Mapping[str, Node]]) -> None:
        self._client = client
        self._node = node
        self._nodes = nodes
        self._log = Log("agent")
        self._refused = ""
        self._forbidden = False
        self._written: dict[str, str] = {}
        """What was written last: the copy of the Node may be older than that."""

    async def insist(self, annotations: Mapping[str, str]) -> None:
        """Makes the Node say it, trying until it does or the API says that this agent may not."""
        backoff = Backoff(0.2, 10.0)
        while not await self.announce(annotations) and not self._forbidden:
            await self._client.clock.sleep(backoff.next_delay_s())

    async def announce(self, annotations: Mapping[str, str], *, network: bool = False) -> bool:
        """Makes the Node say it, and with ``network`` that its network is there; whether it does now."""
        node = self._nodes().get(self._node)
        if node is None:
            self._forbidden = False
            return False
        try:
            have = node.metadata.annotations
            if any(
                have.get(name, "") != text or self._written.get(name, text) != text
                for name, text in annotations.items()
            ):
                await self._client.patch(
                    NODES, self._node, {"metadata": {"annotations": dict(annotations)}}, patch_type=MERGE_PATCH
                )
                self._written |= annotations
            if network and not _is_clear(node):
                await self._client.patch(
                    NODES,
                    self._node,
                    {"status": {"conditions": [self._condition()]}},
                    patch_type=STRATEGIC_MERGE_PATCH,
                    subresource="status",
                )
        except (ApiError, ApiUnreachable) as failure:
            if str(failure) != self._refused:
                self._log.warning("cannot write to the Node", node=self._node, problem=failure)
            self._refused = str(failure)
            self._forbidden = isinstance(failure, ApiError) and failure.code == _FORBIDDEN
            return False
        self._refused, self._forbidden = "", False
        return True

    def _condition(self) -> dict[str, Any]:
        now = rfc3339(self._client.clock.now())
        return {
            "type": _CONDITION,
            "status": "False",
            "reason": "PodwireIsUp",
            "message": "podwire routes pods on this node",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }


def _is_clear(node: Node) -> bool:
    return any(c.type == _CONDITION and c.status == "False" for c in node.status.conditions)
