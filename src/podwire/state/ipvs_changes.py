"""The steps from the present virtual servers to the desired ones.

A TCP real server that is no longer desired drains, because its deletion would drop its connections. Its weight becomes
0, so it gets no new connections, and it is deleted when the last connection has ended (:func:`idle`); its virtual
server stays until then. When it is desired again, it gets its weight back. Real servers of UDP and SCTP are deleted at
once, and so are those of the scheduler ``dh``, which chooses by address alone and refuses connections to a weight of 0.
New real servers are added before old ones are deleted, so a virtual server is never empty in between.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from podwire.state.ipvs import Destination, Key, VirtualServer, endpoint_text

Verb = Literal["add", "set", "delete"]

_CHOOSES_BLINDLY = frozenset(("dh",))


class Step(NamedTuple):
    """One change of a virtual server, or of one of its real servers."""

    verb: Verb
    server: VirtualServer
    destination: Destination | None = None

    @property
    def subject(self) -> str:
        """The object that changes, for error messages."""
        if self.destination is None:
            return f"virtual server {self.server.key}"
        return f"real server {self.server.key} {self.destination}"

    def __str__(self) -> str:
        """The equivalent arguments of ipvsadm."""
        key = self.server.key
        if self.destination is not None:
            if self.verb == "delete":
                return f"-d {key} -r {endpoint_text(*self.destination.endpoint)}"
            return f"{'-a' if self.verb == 'add' else '-e'} {key} {self.destination}"
        if self.verb == "delete":
            return f"-D {key}"
        line = next(self.server.lines())
        return line if self.verb == "add" else f"-E{line.removeprefix('-A')}"


Servers = Mapping[Key, VirtualServer]


def plan(present: Servers, desired: Servers, keys: Iterable[Key] | None = None) -> tuple[Step, ...]:
    """The steps for the virtual servers with these keys, in the order of the keys; None: for all."""
    chosen = keys if keys is not None else dict.fromkeys((*desired, *present))
    return tuple(step for key in chosen for step in _steps(present.get(key), desired.get(key)))


def _steps(present: VirtualServer | None, desired: VirtualServer | None) -> Iterator[Step]:
    if desired is None:
        if present is not None:
            yield from _leave(present)
        return
    without_destinations = replace(desired, destinations=())
    if present is None:
        yield Step("add", without_destinations)
    elif replace(present, destinations=()) != without_destinations:
        yield Step("set", without_destinations)
    old = {destination.endpoint: destination for destination in present.destinations} if present is not None else {}
    for destination in desired.destinations:
        existing = old.get(destination.endpoint)
        if existing is not None and existing.forward != destination.forward:
            yield Step("delete", without_destinations, existing)
            existing = None
        if existing != destination:
            yield Step("add" if existing is None else "set", without_destinations, destination)
    endpoints = {destination.endpoint for destination in desired.destinations}
    for endpoint, destination in old.items():
        if endpoint not in endpoints:
            yield from _retire(without_destinations, destination)


def _leave(server: VirtualServer) -> Iterator[Step]:
    if server.destinations and drains(server):
        for destination in server.destinations:
            yield from _retire(server, destination)
    else:
        yield Step("delete", server)


def _retire(server: VirtualServer, destination: Destination) -> Iterator[Step]:
    if not drains(server):
        yield Step("delete", server, destination)
    elif destination.weight:
        yield Step("set", server, replace(destination, weight=0))


def drains(server: VirtualServer) -> bool:
    """Whether removed real servers of a virtual server keep their connections."""
    return server.key.protocol == "tcp" and server.scheduler not in _CHOOSES_BLINDLY


def draining(present: Servers, desired: Servers) -> dict[Key, tuple[Destination, ...]]:
    """Real servers of weight 0 that are not desired, by virtual server; virtual servers without one are left out."""
    draining_by_key: dict[Key, tuple[Destination, ...]] = {}
    for key, server in present.items():
        desired_server = desired.get(key)
        endpoints = (
            {destination.endpoint for destination in desired_server.destinations}
            if desired_server is not None
            else set()
        )
        retired = tuple(
            destination
            for destination in server.destinations
            if destination.endpoint not in endpoints and not destination.weight
        )
        if retired or desired_server is None:
            draining_by_key[key] = retired
    return draining_by_key


def idle(server: VirtualServer, retired: Iterable[tuple[Destination, int]], *, desired: bool) -> tuple[Step, ...]:
    """The deletions of retired real servers without connections, given with their numbers of connections.

    With its last real server the virtual server is deleted, unless it is desired.
    """
    deleted = {destination.endpoint: destination for destination, connections in retired if not connections}
    if not desired and all(destination.endpoint in deleted for destination in server.destinations):
        return (Step("delete", server),)
    return tuple(Step("delete", server, destination) for destination in deleted.values())


def after(present: Servers, steps: Iterable[Step]) -> dict[Key, VirtualServer]:
    """The virtual servers after the steps."""
    servers = dict(present)
    for step in steps:
        key = step.server.key
        if step.destination is None:
            if step.verb == "delete":
                servers.pop(key, None)
            else:
                destinations = servers[key].destinations if key in servers else ()
                servers[key] = replace(step.server, destinations=destinations)
            continue
        rest = [
            destination
            for destination in servers[key].destinations
            if destination.endpoint != step.destination.endpoint
        ]
        if step.verb != "delete":
            rest.append(step.destination)
        servers[key] = replace(servers[key], destinations=tuple(sorted(rest, key=str)))
    return servers
