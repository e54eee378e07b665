"""Reports which policies are in force on this node: keeps the node's ConfigMap of ``policy.status.report`` current.

Guarantees: 1. only what the kernel holds is reported; 2. a change is reported at once, further changes together one
second later; 3. nothing is written while nothing changes, nor at a start when the report is already right; 4. when the
API server is away or refuses, the write is tried again after a backoff from 1 s to 30 s; 5. no report is written until
there is a first policy or problem. The ConfigMap is deleted with the Node.
"""

import asyncio
from collections.abc import Callable, Mapping

from podwire.cluster.names import POLICY_REPORT
from podwire.errors import AlreadyExists, ApiError, ApiUnreachable, NotFound, ProtocolError
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.resources import CONFIGMAPS, Json
from podwire.model.changed import Changed
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.policy.status.digest import Digest
from podwire.policy.status.report import (
    COMMITS,
    KINDS,
    LABEL_VALUE,
    NAMESPACE,
    Commit,
    EnforcedPolicies,
    name_of,
    parse,
    render,
)
from podwire.runtime.backoff import Backoff

_BETWEEN_S = 1.0

FindPolicy = Callable[[str, str], ObjectMeta | None]
"""Returns the metadata of a policy by its kind and key; None: there is no such policy."""


class PolicyReport:
    """Writes the report of one agent; ``node`` returns its Node object, ``find`` a policy."""

    def __init__(self, client: Client, name: str, node: Callable[[], Node | None], find: FindPolicy) -> None:
        self._client = client
        self._name = name
        self._node = node
        self._find = find
        self._digests = {kind: Digest() for kind in KINDS}
        self._commits: dict[str, tuple[Commit, ...]] = {}
        self._problem = ""
        self._written: dict[str, str] | None = None
        self._changed = asyncio.Event()
        self._log = Log("policy")
        self._failure = ""

    def committed(self, changed: Mapping[Changed, float]) -> None:
        """Takes over changes that are in force now; the values are when each was received (monotonic clock)."""
        now = self._client.clock.monotonic()
        received = {kind: now for kind in KINDS if kind not in self._commits}
        for change, at in changed.items():
            kind = change.kind
            if kind in KINDS and self._digests[kind].put(change.key, self._find(kind, change.key)):
                received[kind] = min(at, received.get(kind, at))
        at_ms = int(self._client.clock.now().timestamp() * 1000)
        for kind, since in received.items():
            commit = Commit(str(self._digests[kind]), at_ms, (now - since) * 1000)
            self._commits[kind] = (*self._commits.get(kind, ()), commit)[-COMMITS:]
        if received or self._problem:
            self._problem = ""
            self._changed.set()

    def refused(self, problem: str) -> None:
        """Takes over that the kernel refused a change."""
        if problem != self._problem:
            self._problem = problem
            self._changed.set()

    async def run(self) -> None:
        """Writes every change until cancelled."""
        backoff = Backoff(_BETWEEN_S, 30.0)
        while True:
            await self._changed.wait()
            self._changed.clear()
            if await self._write_logged():
                backoff.reset()
                await self._client.clock.sleep(_BETWEEN_S)
            else:
                self._changed.set()
                await self._client.clock.sleep(backoff.next_delay_s())

    async def _write_logged(self) -> bool:
        """Writes the report; returns whether it is up to date now."""
        node, failure = self._node(), ""
        try:
            if node is not None:
                await self._write(node)
        except (ApiError, ApiUnreachable, ProtocolError) as problem:
            failure = str(problem)
            if failure != self._failure:
                self._log.warning("cannot write the report of the policies in force", problem=failure)
        self._failure = failure
        return node is not None and not failure

    async def _write(self, node: Node) -> None:
        name = name_of(self._name)
        if self._written is None:
            self._written = await self._read(name, node)
        if not self._written and not self._problem and not any(self._digests.values()):
            return
        data = render(EnforcedPolicies(self._name, self._commits, self._problem))
        different = {key: text for key, text in data.items() if self._written.get(key) != text}
        if not different:
            return
        if not (self._written and await self._patched(name, different)):
            await self._create(name, node, data)
        self._written = data

    async def _patched(self, name: str, data: Mapping[str, str]) -> bool:
        """Updates the ConfigMap; returns False when it was deleted."""
        try:
            await self._client.patch(CONFIGMAPS, name, {"data": data}, NAMESPACE, patch_type=MERGE_PATCH)
        except NotFound:
            return False
        return True

    async def _read(self, name: str, node: Node) -> dict[str, str]:
        """The data of the existing ConfigMap; commits that are still in force keep their time."""
        try:
            config_map = await self._client.get(CONFIGMAPS, name, NAMESPACE)
        except NotFound:
            return {}
        owners = config_map["metadata"].get("ownerReferences") or [{}]
        if owners[0].get("uid") != node.metadata.uid:
            await self._client.delete(CONFIGMAPS, name, NAMESPACE)
            return {}
        data = dict(config_map.get("data") or {})
        for kind, commits in parse(data).commits.items():
            own = self._commits.get(kind, ())
            if commits and own and commits[-1].digest == own[0].digest:
                self._commits[kind] = (*commits, *own[1:])[-COMMITS:]
        return data

    async def _create(self, name: str, node: Node, data: dict[str, str]) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node.metadata.uid}
        body: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {POLICY_REPORT: LABEL_VALUE}, "ownerReferences": [owner]},
            "data": data,
        }
        try:
            await self._client.create(CONFIGMAPS, body, NAMESPACE)
        except AlreadyExists:
            self._written = None
            raise
