"""How far a migration is: a ConfigMap with one key for each node, as values. Pure.

The ConfigMap ``podwire-migration`` has the key ``direction`` (``apply`` or ``back``) and a key ``node.<name>`` for each
node that a run has touched: the steps that are done, and the facts of the node from before (:class:`NodeBefore`), which
``back`` needs. A run that was killed continues behind the last step that is recorded; each step can be repeated.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError

NAME = "podwire-migration"
"""The name of the ConfigMap and of the Lease."""
Direction = Literal["apply", "back"]
DIRECTIONS: tuple[Direction, ...] = ("apply", "back")
_PREFIX = "node."

STEPS: Mapping[Direction, tuple[str, ...]] = {
    "apply": ("check", "select", "network", "services", "verify"),
    "back": ("release", "network-back", "services-back", "verify-back"),
}
"""The steps of each node in their order."""

MEANINGS: Mapping[str, str] = {
    "check": "read the node, change nothing",
    "select": "end the pods of the old network on the node, start the agent",
    "network": "move the old configuration of the runtime away, take over devices and routes",
    "services": "wait until the rules of kube-proxy are gone",
    "verify": "connect to a pod of every node, and to a Service",
    "release": "end the agent, start the pods of the old network",
    "network-back": "put the old configuration back, hand over addresses, devices and routes",
    "services-back": "wait for the rules of kube-proxy, remove those of podwire",
    "verify-back": "connect to a pod of every node, and to a Service",
}
"""What each step does."""


class NodeBefore(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node before its migration.

    ``configurations`` are the files of the container runtime, ``routes`` those to pods of other nodes in the form of
    ip(8), ``devices`` the tunnels of Flannel. ``kube_proxy`` is the mode of kube-proxy's rules, empty without them.
    ``host_local`` is the directory of addresses, empty when the configured one does not exist.
    """

    configurations: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    kube_proxy: str = ""
    host_local: str = ""
    pods: int = 0


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the steps that are done in the direction of the run, and its facts from before."""

    direction: Direction = "apply"
    done: tuple[str, ...] = ()
    before: NodeBefore = NodeBefore()

    def next_step(self, direction: Direction) -> str:
        """The first step of a direction that is not done; empty when all are done.

        Going back begins anew at the first step, also from the middle of the way there.
        """
        done = self.done if self.direction == direction else ()
        if direction == "back" and self.direction == "apply" and not _changed(self.done):
            return ""
        return next((step for step in STEPS[direction] if step not in done), "")

    def after(self, direction: Direction, step: str) -> "NodeRecord":
        """The record after a step."""
        done = self.done if self.direction == direction else ()
        return msgspec.structs.replace(self, direction=direction, done=(*done, step))

    @property
    def state(self) -> str:
        """In words: ``old network``, ``podwire``, or the steps that are done."""
        complete = self.done == STEPS[self.direction]
        if complete or not _changed(self.done):
            return "podwire" if complete and self.direction == "apply" else "old network"
        return f"{self.direction}: {', '.join(self.done)}"


def _changed(done: Iterable[str]) -> bool:
    """Whether steps have changed anything."""
    return any(step != "check" for step in done)


class MigrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole migration; ``direction`` None: none was begun."""

    direction: Direction | None = None
    nodes: Mapping[str, NodeRecord] = {}

    def node(self, name: str) -> NodeRecord:
        """The record of a node, an empty one when there is none."""
        return self.nodes.get(name, NodeRecord())


def parse(data: Mapping[str, Any]) -> MigrationRecord:
    """The record in the data of the ConfigMap.

    Raises: ConfigError naming the key.
    """
    direction = data.get("direction")
    if direction is not None and direction not in DIRECTIONS:
        expected = " or ".join(DIRECTIONS)
        raise ConfigError(f"ConfigMap {NAME}", "data.direction", f"expected {expected}, got {direction!r}")
    nodes = {}
    for key, text in data.items():
        if key.startswith(_PREFIX):
            try:
                nodes[key.removeprefix(_PREFIX)] = msgspec.json.decode(str(text), type=NodeRecord)
            except msgspec.DecodeError as failure:
                raise ConfigError(f"ConfigMap {NAME}", f"data.{key}", str(failure)) from failure
    return MigrationRecord(direction=direction, nodes=nodes)


def entry(name: str, record: NodeRecord) -> dict[str, str]:
    """The key and the value of a node."""
    return {f"{_PREFIX}{name}": msgspec.json.encode(record).decode()}
