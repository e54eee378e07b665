"""Writes an agent's annotations and conditions to its Node object.

Both are compared with the Node, so an idle agent writes nothing. ``NetworkUnavailable`` is the condition that keeps the
scheduler away (by its taint) until the node has a network; only the agent clears it, and sets it again when routing
refuses packets to all other nodes.

The API sends every write of a Node to every agent of the cluster. So several changes are one write: at a start the
write waits, five seconds at most, for the announcement of routing.

An agent in kube-proxy's place may have kube-proxy's role, which may not write to Nodes: then nothing is written, and
the API is not asked repeatedly.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import NODES
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import rfc3339

_CONDITION = "NetworkUnavailable"
_FORBIDDEN = 403


class NetworkStatus(NamedTuple):
    """The network of the node; ``problem`` says why it is unavailable, and is empty when it is ready.

    ``by_controller``: a ready network is announced by a controller, and not by this agent.
    """

    problem: str = ""
    by_controller: bool = False

    @property
    def condition(self) -> dict[str, str]:
        """The condition of the Node, without times."""
        if self.problem:
            return _condition("True", "PacketsRefused", self.problem)
        return _condition("False", "PodwireIsUp", "podwire routes pods on this node")


def node_condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    """A condition of a Node, without times."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _condition(status: str, reason: str, message: str) -> dict[str, str]:
    return node_condition(_CONDITION, status, reason, message)


class Announcer:
    """Writes one Node object.

    With ``networked`` the first write waits for the node's network, so that both are one write, for at most
    ``network_wait_s``.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        nodes: Callable[[], Mapping[str, Node]],
        *,
        networked: bool = False,
        network_wait_s: float = 5.0,
    ) -> None:
        self._client = client
        self._node = node
        self._nodes = nodes
        self._network_wait_s = network_wait_s
        self._log = Log("agent")
        self._refused = ""
        self._forbidden = False
        self._desired: dict[str, str] = {}
        self.conditions: dict[str, dict[str, str]] = {}
        """Further conditions of the Node by their type; each write of the Node brings those that differ."""
        self._writing = asyncio.Lock()
        self._written: tuple[int, dict[str, str]] = (0, {})
        """The written values, and the version of the Node since; the copy of the Node may be older than that."""
        self._begun = asyncio.Event()
        if not networked:
            self._begun.set()

    async def insist(self, annotations: Mapping[str, str]) -> None:
        """Writes the annotations to the Node, and retries until that succeeds or the API forbids it."""
        self._desired |= annotations
        try:
            async with asyncio.timeout(self._network_wait_s):
                await self._begun.wait()
        except TimeoutError:
            self._begun.set()
        backoff = Backoff(0.2, 10.0)
        while not await self.announce(annotations) and not self._forbidden:
            await self._client.clock.sleep(backoff.next_delay_s())

    async def announce(self, annotations: Mapping[str, str], *, network: NetworkStatus | None = None) -> bool:
        """Writes all announced annotations, and with ``network`` the condition of the node's network.

        Returns whether the Node has them now.
        """
        self._desired |= annotations
        async with self._writing:
            node = self._nodes().get(self._node)
            if node is None:
                self._forbidden = False
                return False
            try:
                await self._write(node, network=network)
            except (ApiError, ApiUnreachable) as failure:
                if str(failure) != self._refused:
                    self._log.warning("cannot write to the Node", node=self._node, problem=failure)
                self._refused = str(failure)
                self._forbidden = isinstance(failure, ApiError) and failure.code == _FORBIDDEN
                return False
            self._refused, self._forbidden = "", False
        if network is not None:
            self._begun.set()
        return True

    async def _write(self, node: Node, *, network: NetworkStatus | None) -> None:
        """Writes the values that the Node does not have yet."""
        since, written = self._written
        have = node.metadata.annotations
        if _version(node.metadata.resource_version) < since:
            have = have | written
        different = {name: text for name, text in self._desired.items() if have.get(name, "") != text}
        if different:
            body = {"metadata": {"annotations": different}}
            answer = await self._client.patch(NODES, self._node, body, patch_type=MERGE_PATCH)
            self._written = _version(answer.get("metadata", {}).get("resourceVersion", "")), written | different
        own = network is not None and (network.problem or not network.by_controller)
        conditions = [network.condition] if network is not None and own and not _has(node, network.condition) else []
        conditions += [condition for condition in self.conditions.values() if not _shows(node, condition)]
        if conditions:
            await self._client.patch(
                NODES,
                self._node,
                {"status": {"conditions": list(map(self._with_times, conditions))}},
                patch_type=STRATEGIC_MERGE_PATCH,
                subresource="status",
            )

    def _with_times(self, condition: dict[str, str]) -> dict[str, str]:
        now = rfc3339(self._client.clock.now())
        return {**condition, "lastHeartbeatTime": now, "lastTransitionTime": now}


def _has(node: Node, condition: dict[str, str]) -> bool:
    """Whether the Node has the condition; the message of a ready network may be that of another program."""
    unavailable = condition["status"] == "True"
    return any(
        c.type == _CONDITION
        and c.status == condition["status"]
        and (not unavailable or c.message == condition["message"])
        for c in node.status.conditions
    )


def _shows(node: Node, condition: dict[str, str]) -> bool:
    """Whether the Node has the condition; without it on the Node, one that is not true counts as shown."""
    present = next((c for c in node.status.conditions if c.type == condition["type"]), None)
    if present is None:
        return condition["status"] != "True"
    return (present.status, present.message) == (condition["status"], condition["message"])


def _version(text: str) -> int:
    return int(text) if text.isdecimal() else 0
