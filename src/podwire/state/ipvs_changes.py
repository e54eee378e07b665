"""The way from the virtual servers that a kernel holds to those that it should hold, in steps.

A real server of TCP that is no longer wanted drains: deleting it would drop its connections. Its weight becomes 0, so
that it gets no new connections, and it is deleted when the last connection has ended (:func:`idle`); its virtual server
stays until then. A real server that is wanted again gets its weight back. Real servers of UDP and SCTP are deleted at
once, and so are those of the scheduler ``dh``: it chooses by address alone, and refuses connections to a weight of 0.

New real servers are added before old ones are deleted, so a virtual server is never empty in between.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from podwire.state.ipvs import Destination, Key, VirtualServer, endpoint_text

Verb = Literal["add", "set", "delete"]

_CHOOSES_BLINDLY = frozenset(("dh",))


class Step(NamedTuple):
    """One change: of a virtual server, or of a real server of it."""

    verb: Verb
    server: VirtualServer
    destination: Destination | None = None

    @property
    def subject(self) -> str:
        """The object that changes, for messages."""
        if self.destination is None:
            return f"virtual server {self.server.key}"
        return f"real server {self.server.key} {self.destination}"

    def __str__(self) -> str:
        """The arguments of ipvsadm that do the same."""
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


def plan(have: Servers, want: Servers, keys: Iterable[Key] | None = None) -> tuple[Step, ...]:
    """The steps for the virtual servers of these keys, in the order of the keys; None: for all of either side."""
    chosen = keys if keys is not None else dict.fromkeys((*want, *have))
    return tuple(step for key in chosen for step in _steps(have.get(key), want.get(key)))


def _steps(have: VirtualServer | None, want: VirtualServer | None) -> Iterator[Step]:
    if want is None:
        if have is not None:
            yield from _leave(have)
        return
    bare = replace(want, destinations=())
    if have is None:
        yield Step("add", bare)
    elif replace(have, destinations=()) != bare:
        yield Step("set", bare)
    there = {each.endpoint: each for each in have.destinations} if have is not None else {}
    wanted = {each.endpoint for each in want.destinations}
    for destination in want.destinations:
        known = there.get(destination.endpoint)
        if known is not None and known.forward != destination.forward:
            yield Step("delete", bare, known)
            known = None
        if known != destination:
            yield Step("add" if known is None else "set", bare, destination)
    for place, destination in there.items():
        if place not in wanted:
            yield from _retire(bare, destination)


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
    """Whether real servers of a virtual server keep their connections when they go."""
    return server.key.protocol == "tcp" and server.scheduler not in _CHOOSES_BLINDLY


def draining(have: Servers, want: Servers) -> dict[Key, tuple[Destination, ...]]:
    """Real servers of weight 0 that are not wanted, by virtual server; none for a virtual server that has none left."""
    found: dict[Key, tuple[Destination, ...]] = {}
    for key, server in have.items():
        wanted = want.get(key)
        places = {each.endpoint for each in wanted.destinations} if wanted is not None else set()
        retired = tuple(each for each in server.destinations if each.endpoint not in places and not each.weight)
        if retired or wanted is None:
            found[key] = retired
    return found


def idle(server: VirtualServer, retired: Iterable[tuple[Destination, int]], *, wanted: bool) -> tuple[Step, ...]:
    """What goes of the retired real servers, given with the number of their connections; with the last one the
    virtual server, unless it is wanted."""
    gone = {destination.endpoint: destination for destination, connections in retired if not connections}
    if not wanted and all(each.endpoint in gone for each in server.destinations):
        return (Step("delete", server),)
    return tuple(Step("delete", server, destination) for destination in gone.values())


def after(have: Servers, steps: Iterable[Step]) -> dict[Key, VirtualServer]:
    """The virtual servers after the steps."""
    found = dict(have)
    for step in steps:
        key = step.server.key
        if step.destination is None:
            if step.verb == "delete":
                found.pop(key, None)
            else:
                kept = found[key].destinations if key in found else ()
                found[key] = replace(step.server, destinations=kept)
            continue
        rest = [each for each in found[key].destinations if each.endpoint != step.destination.endpoint]
        if step.verb != "delete":
            rest.append(step.destination)
        found[key] = replace(found[key], destinations=tuple(sorted(rest, key=str)))
    return found
