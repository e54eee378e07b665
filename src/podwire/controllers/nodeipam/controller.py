"""The loop that allocates pod CIDRs to nodes.

Guarantees: 1. CIDRs of existing nodes are recorded before the first allocation; 2. a node's CIDRs are never changed,
only set when it has none; 3. one write per node; 4. a node for which no CIDR is free gets an event ``CIDRNotAvailable``
and is tried again when another node is deleted, and every 30 s.
"""

from podwire.controllers.nodeipam.allocate import Exhausted, NodeCidrs
from podwire.errors import NotFound
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.resources import NODES
from podwire.model.node import Node
from podwire.runtime.supervise import Supervisor

_AGAIN_S = 30.0


class NodeIpamController:
    """Writes ``spec.podCIDR`` and ``spec.podCIDRs``."""

    def __init__(self, environment: Environment, cidrs: NodeCidrs) -> None:
        self._client = environment.client
        self._log = environment.log
        self._recorder = environment.recorder("cidrAllocator")
        self._nodes = environment.of(NODES)
        self._cidrs = cidrs
        self._without: set[str] = set()
        self._loop = environment.loop("nodeipam", self._reconcile)
        self._nodes.subscribe(self._changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop; the informer has reported all existing nodes before."""
        self._loop.start(supervisor, workers=8)

    def _changed(self, key: str, _old: Node | None, new: Node | None) -> None:
        if new is None:
            self._cidrs.release(key)
            for other in self._without:
                self._loop.touch(other)
        elif networks := new.pod_networks:
            self._cidrs.occupy(key, networks)
            self._without.discard(key)
        else:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        node = self._nodes.get(key)
        if node is None or node.pod_networks or node.metadata.deletion_timestamp is not None:
            return
        try:
            networks = self._cidrs.allocate(key)
        except Exhausted as failure:
            self._without.add(key)
            message = f"Node {key} status is now: CIDRNotAvailable"
            self._recorder.event(reference("v1", "Node", node.metadata), "Normal", "CIDRNotAvailable", message)
            self._log.warning("cannot allocate a pod CIDR", node=key, problem=failure)
            self._loop.queue.add_after(key, _AGAIN_S)
            return
        texts = [str(network) for network in networks]
        body = {"metadata": {"uid": node.metadata.uid}, "spec": {"podCIDR": texts[0], "podCIDRs": texts}}
        try:
            await self._client.patch(NODES, key, body)
        except NotFound:
            return
