"""Follows the objects of ``projectcalico.org/v3`` that configure BGP, and the Secrets with their passwords.

Guarantees: 1. an object that is refused keeps its last good form in force, also over a restart of the agent, and gets
one Event for each reason; without a good form it has no effect; 2. a peer whose filter or Secret is missing is refused
in the same way, so a peer never works without the filters that it names; 3. the first value is handed over when all
kinds have been listed, and the Secrets too or five seconds have passed; with ranges of Services, when Services have
been listed, too.

Cost: one watch per kind and one per Secret; each change of one of them reads all objects, 0.1 ms each. With ranges of
Services those of :mod:`.servicefollow`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from podwire.errors import ConfigError
from podwire.kube.events import reference
from podwire.kube.informer import Informer
from podwire.kube.namedsecrets import NamedSecrets
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import BGPCONFIGURATIONS, BGPFILTERS, BGPPEERS, IPPOOLS
from podwire.model.bgp import API_VERSION, BgpPassword
from podwire.model.meta import ObjectMeta
from podwire.observe.log import Log
from podwire.routing.backends.bgp.filters import FilterValues, read_filter
from podwire.routing.backends.bgp.objects import (
    BgpObjects,
    ConfigurationValues,
    Surroundings,
    node_of_configuration,
    read_configuration,
    read_peer,
    read_pool,
)
from podwire.routing.backends.bgp.serviceaddresses import AnnouncedRanges
from podwire.routing.backends.bgp.servicefollow import ServiceFollower
from podwire.routing.follower import FollowerContext
from podwire.routing.nodes import peer_of
from podwire.runtime.files import write_atomically
from podwire.runtime.supervise import Supervisor

REFUSED = "ObjectRefused"
"""The reason of Events on refused objects."""
_QUIET_S = 0.05


class ApiObject(Protocol):
    """An object of the model."""

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=ApiObject)
V = TypeVar("V")


class BgpObjectsFollower:
    """Turns the objects into one value for the backend."""

    def __init__(self, context: FollowerContext) -> None:
        client = context.client
        self.configurations = Informer(client, BGPCONFIGURATIONS)
        self.peers = Informer(client, BGPPEERS)
        self.filters = Informer(client, BGPFILTERS)
        self.pools = Informer(client, IPPOOLS)
        self._informers: tuple[Informer[Any], ...] = (self.configurations, self.peers, self.filters, self.pools)
        self._context = context
        self._secrets = NamedSecrets(client, context.namespace, self.disturbed)
        self._services = ServiceFollower(client, context.node, self.disturbed)
        self._requested = asyncio.Event()
        self._good: dict[tuple[str, str], tuple[Any, Any]] = {}
        """Kind and name of an object: its last good form and the values of it."""
        self._refused: dict[tuple[str, str], str] = {}
        self._file = context.directory / "bgp-objects.json"
        self._written = b""
        self._saved = self._read_file()
        self._last: BgpObjects | None = None
        self._log = Log("bgp")
        context.events.follow_rejected(*self._informers)
        for informer in self._informers:
            informer.subscribe(lambda _key, _old, _new: self.disturbed())

    def disturbed(self) -> None:
        """Requests that the objects are read again."""
        self._requested.set()

    async def run(self) -> None:
        """Follows the objects until cancelled."""
        client = self._context.client
        async with Supervisor(client.clock, self._report) as supervisor:
            for informer in self._informers:
                supervisor.start(informer.resource.plural, lambda source=informer: follow_when_served(client, source))  # type: ignore[misc]
            supervisor.start("objects of bgp", lambda: self._keep(supervisor))

    async def _keep(self, supervisor: Supervisor) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        while True:
            await self._secrets.follow(set(self._secret_names()), supervisor)
            self._requested.clear()
            objects = self._read()
            ranges = objects.of_node(self._context.node).service_ranges or AnnouncedRanges()
            await self._services.follow(ranges, supervisor)
            self._hand_over(msgspec.structs.replace(objects, service_addresses=self._services.addresses))
            await self._context.client.clock.sleep(_QUIET_S)
            await self._requested.wait()

    def _report(self, task: str, failure: BaseException) -> None:
        self._log.error("task failed and is started again", failure=failure, task=task)

    def _read(self) -> BgpObjects:
        """Reads all objects."""
        nodes = [peer_of(node) for node in self._context.nodes().values()]
        around = Surroundings(
            secrets=self._secrets.text,
            node_addresses=frozenset(address for node in nodes for address in node.addresses),
            pod_cidrs=tuple(cidr for node in nodes for cidr in node.pod_cidrs),
            masquerade=self._context.masquerade(),
            blocks=self._context.blocks,
            device=self._context.device(),
        )
        filters: Mapping[str, FilterValues] = self._valid(self.filters, read_filter)
        around = msgspec.structs.replace(around, filters=filters)
        configurations = self._valid(self.configurations, lambda obj: read_configuration(obj, around))
        by_node = {node_of_configuration(name): values for name, values in configurations.items()}
        objects = BgpObjects(
            default=by_node.pop("", ConfigurationValues()),
            nodes=by_node,
            peers=tuple(self._valid(self.peers, lambda obj: read_peer(obj, around)).values()),
            pools=tuple(self._valid(self.pools, lambda obj: read_pool(obj, around)).values()),
        )
        self._write_file()
        return objects

    def _hand_over(self, objects: BgpObjects) -> None:
        """Hands the value over when it differs."""
        if objects != self._last:
            self._last = objects
            self._context.take(objects)

    def _valid(self, informer: Informer[T], read: Callable[[T], V]) -> dict[str, V]:
        """The values of the valid objects of one kind by name, in the order of the names."""
        kind = informer.resource.kind
        for key in [key for key in (*self._good, *self._refused) if key[0] == kind and key[1] not in informer.objects]:
            self._good.pop(key, None)
            self._refused.pop(key, None)
        values = {}
        for name, obj in sorted(informer.objects.items()):
            key = (kind, name)
            try:
                self._good[key] = (obj, read(obj))
                self._refused.pop(key, None)
            except ConfigError as problem:
                self._restore(key, informer.resource.type, read)
                self._refuse(key, obj, problem)
            if key in self._good:
                values[name] = self._good[key][1]
        return values

    def _restore(self, key: tuple[str, str], kind: type[T], read: Callable[[T], V]) -> None:
        """Takes the good form that an earlier agent knew, where this agent knows none."""
        if key in self._good or key not in self._saved:
            return
        try:
            earlier = msgspec.convert(self._saved[key], kind)
            self._good[key] = (earlier, read(earlier))
        except (ConfigError, msgspec.ValidationError):
            del self._saved[key]

    def _refuse(self, key: tuple[str, str], obj: ApiObject, problem: ConfigError) -> None:
        """Records an Event and a line of the log, once for each reason."""
        outcome = "its last good form stays in force" if key in self._good else "it has no effect"
        text = f"{problem}; {outcome}"
        if self._refused.get(key) == text:
            return
        self._refused[key] = text
        self._log.warning("refused an object", kind=key[0], name=key[1], problem=problem, outcome=outcome)
        self._context.events.event(reference(API_VERSION, key[0], obj.metadata), "Warning", REFUSED, text)

    def _secret_names(self) -> Iterator[str]:
        passwords: list[BgpPassword | None] = [peer.spec.password for peer in self.peers.objects.values()]
        passwords += [obj.spec.node_mesh_password for obj in self.configurations.objects.values()]
        for password in passwords:
            if password is not None and password.secret_key_ref is not None and password.secret_key_ref.name:
                yield password.secret_key_ref.name

    def _read_file(self) -> dict[tuple[str, str], Any]:
        try:
            kinds = msgspec.json.decode(self._file.read_bytes(), type=dict[str, dict[str, Any]])
        except (OSError, msgspec.DecodeError):
            return {}
        return {(kind, name): obj for kind, objects in kinds.items() for name, obj in objects.items()}

    def _write_file(self) -> None:
        kinds: dict[str, dict[str, Any]] = {}
        for (kind, name), (obj, _) in sorted(self._good.items()):
            kinds.setdefault(kind, {})[name] = obj
        content = msgspec.json.encode(kinds)
        if content == self._written:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, content, 0o600)
        except OSError as failure:
            self._log.warning("cannot save the last valid forms of objects", file=self._file, problem=failure)
        else:
            self._written = content
