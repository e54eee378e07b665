"""The followers of API objects that configure a routing backend, by the backend's name.

A follower runs from the moment when a node uses the backend. It turns the objects into one value and hands it to the
router, which gives it to the backend with each run. Until the first value is known, the router leaves everything as it
is: a restart must not end the sessions that objects describe.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.model.node import Node
from podwire.runtime.registry import Registry


class FollowerContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a follower from the agent.

    ``namespace`` is that of the agents' own objects, ``directory`` the one for files that survive a restart.
    ``take`` gets the value for the backend whenever it changes. ``blocks``: nodes claim blocks of IPPools. ``node`` is
    the name of this node, ``device`` returns that of the device with its addresses, empty while it is not known.
    """

    client: Client
    events: EventRecorder
    namespace: str
    directory: Path
    nodes: Callable[[], Mapping[str, Node]]
    masquerade: Callable[[], bool]
    take: Callable[[Any], None]
    blocks: bool = False
    node: str = ""
    device: Callable[[], str] = str


class ObjectFollower(Protocol):
    """Follows the API objects that configure one backend."""

    def __init__(self, context: FollowerContext) -> None: ...

    async def run(self) -> None:
        """Follows the objects until cancelled."""
        ...

    def disturbed(self) -> None:
        """Called when a Node or a setting has changed, on which the value may depend."""
        ...


FOLLOWERS: Registry[type[ObjectFollower]] = Registry(
    "follower of routing objects",
    "routing.backend",
    {"bgp": "podwire.routing.backends.bgp.follow:BgpObjectsFollower"},
)
