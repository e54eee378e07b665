"""The addresses for which this node answers: from the election to the kernel, with the node's own Lease.

Guarantees: 1. a node answers for an address only while the Lease of the address names it, and its own Lease was renewed
within ``liveness.HOLD_S``: no two nodes answer at once; 2. a change is followed within :data:`_QUIET_S`, a dead node
within :data:`_CHECK_S` after ``liveness.EXPIRY_S``; 3. an address that the node has taken over is announced to the link
at once and then every :data:`_REPEAT_S` for :data:`_ANNOUNCE_S`; 4. when the agent is restarted, the kernel answers
until the successor has renewed the Lease, and nothing moves; 5. while the API is away, addresses stay where they are,
as long as the agents of all nodes say that it is away; where they say so too late, the node gives the addresses up and
takes them back. ``docs/adr/0022-balancer-addresses.md`` has the reasons.

Cost: one write a second on each node that an L2Advertisement selects, and one in ten seconds while no Service has an
address; nothing else while nothing changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Protocol

from podwire.errors import ApiError, ApiUnreachable, KernelError, ProtocolError
from podwire.kernel.leased_addresses import LeasedAddress
from podwire.kube.client import Client
from podwire.kube.optional import follow_when_served
from podwire.loadbalancer.claims import Claims
from podwire.loadbalancer.election import Elector, L2Choice
from podwire.loadbalancer.heartbeats import INTERVAL_S, Heartbeats
from podwire.loadbalancer.liveness import (
    CONTACT_S,
    EXPIRY_S,
    HEARD_S,
    HOLD_S,
    IDLE_RENEW_S,
    RENEW_S,
    SpeakerLiveness,
    all_without_contact,
    lifetime_s,
)
from podwire.loadbalancer.nodeleases import NodeLeases
from podwire.loadbalancer.ranges import Address
from podwire.loadbalancer.view import BalancerView
from podwire.observe.log import Log
from podwire.runtime.workqueue import in_parallel

_QUIET_S = 0.02
_CHECK_S = 0.1
_IDLE_S = 1.0
"""The time between two rounds while there is no address to answer for."""
_REPEAT_S = 1.1
_ANNOUNCE_S = 5.0
_LONGER_S = 0.5
"""The lifetimes of addresses are extended between renewals of the Lease where that makes them this much longer."""
_AT_ONCE = 16
_FAILURES = (ApiError, ApiUnreachable, ProtocolError)


class AnsweringKernel(Protocol):
    """The devices of a node."""

    def own_device(self) -> str:
        """The device with the node's own address; empty when there is none now."""
        ...

    def read(self) -> frozenset[LeasedAddress]:
        """The addresses of load balancers that are on devices."""
        ...

    def renew(self, addresses: Iterable[LeasedAddress], valid_s: int) -> tuple[KernelError, ...]:
        """Puts addresses on devices, or extends their lifetime."""
        ...

    def remove(self, addresses: Iterable[LeasedAddress]) -> tuple[KernelError, ...]:
        """Takes addresses from devices."""
        ...

    def announce(self, addresses: Iterable[LeasedAddress]) -> int:
        """Tells the machines of the links where the addresses are; returns the number of announcements."""
        ...


class L2Speaker:
    """The addresses of one node."""

    def __init__(self, client: Client, node: str, namespace: str, view: BalancerView, kernel: AnsweringKernel) -> None:
        self._client, self._clock = client, client.clock
        self._node = node
        self._view = view
        self._kernel = kernel
        self._log = Log("loadbalancer")
        self._wake = asyncio.Event()
        self.claims = Claims(client, namespace, self._wake.set)
        self.liveness = SpeakerLiveness(node)
        self.leases = NodeLeases(client, node, namespace, self.liveness)
        self.heartbeats = Heartbeats(node, lambda: view.nodes.objects, self._clock)
        self._elector = Elector()
        self.choices: Mapping[Address, L2Choice] = {}
        self.held: dict[Address, frozenset[LeasedAddress]] = {}
        """The addresses for which this node answers, on their devices."""
        self.announced: Callable[[L2Choice], None] = lambda _: None
        """Called when this node has taken over an address."""
        self.followed: Callable[[], None] = lambda: None
        """Called when ``held`` or ``choices`` may have changed; not before they were known once."""
        self.prepare: Callable[[], None] = lambda: None
        """Called before addresses are put on devices."""
        self.announcements = 0
        self.moves = 0
        self._renewed = self._contact = float("-inf")
        """When the last renewal began that succeeded. The second is later while all nodes say that they have no contact
        to the API: the time of what they said."""
        self._valid_until = float("-inf")
        """When the first of the addresses in the kernel may expire."""
        self._given_up: dict[Address, frozenset[LeasedAddress]] = {}
        """Addresses that were given up for want of contact, and that no other node can have yet."""
        self._repeats: dict[Address, tuple[float, float]] = {}
        """For each address that was taken over: the next announcement, and the end of announcements."""
        self._planned: tuple[object, ...] = ()
        self._is_due = True
        """Whether holders may differ from the choices."""
        self._adopted = asyncio.Event()
        self._is_busy = True
        """Whether a Service has an address, or something is left to do for earlier ones."""
        self._needed = asyncio.Event()
        """Set when this node has to renew its Lease before long."""
        view.subscribe(self._wake.set)

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name."""
        return {
            "l2 leases": self.leases.informer.run,
            "l2 claims": self.claims.informer.run,
            "l2 pools": lambda: follow_when_served(self._client, self._view.pools),
            "l2 advertisements": lambda: follow_when_served(self._client, self._view.advertisements),
            "l2 renewal": self.renew,
            "l2 heartbeats": lambda: self.heartbeats.run(
                self.tell_contact, self.alive, lambda: INTERVAL_S if self._is_busy else _IDLE_S
            ),
            "l2": self.run,
        }

    def has_contact(self) -> bool:
        """Whether a renewal succeeded lately."""
        return self._clock.monotonic() - self._renewed < CONTACT_S

    def tell_contact(self) -> bool:
        """As :meth:`has_contact`, for another node; without contact this node takes over nothing for a while.

        A node that renews seldom, because no Service has an address, says nothing.
        """
        if self._is_busy and not self.has_contact():
            self.liveness.disconnect()
            return False
        return True

    def alive(self) -> frozenset[str]:
        """The nodes whose agents are alive."""
        return self.liveness.alive(self._clock.monotonic())

    # The node's own Lease

    async def renew(self) -> None:
        """Renews the Lease of this node while an L2Advertisement selects the node, until cancelled."""
        await self._adopted.wait()
        while True:
            began = self._clock.monotonic()
            if self._view.is_candidate(self._node) or self.held:
                try:
                    async with asyncio.timeout(HOLD_S):
                        await self.leases.write()
                except (TimeoutError, *_FAILURES) as failure:
                    self._log.debug("cannot renew the lease", problem=failure)
                else:
                    self._renewed = began
                    self._confirm(began)
            if not self._is_busy:
                self._needed.clear()
                try:
                    async with asyncio.timeout(IDLE_RENEW_S):
                        await self._needed.wait()
                except TimeoutError:
                    continue
            await self._clock.sleep(max(0.0, RENEW_S - (self._clock.monotonic() - began)))

    def _confirm(self, contact: float) -> None:
        """Takes over a renewal that began at ``contact``, and extends the lifetimes in the kernel.

        When the one before is too long ago, for example because this process was stopped, other nodes may have the
        addresses by now.
        """
        if self.held and not self._may_hold():
            self._drop(tuple(self.held))
            self._is_due = True
        self._given_up.clear()
        self._contact = max(contact, self._contact)
        now = self._clock.monotonic()
        valid_s = lifetime_s(self._contact, now)
        addresses = [leased for group in self.held.values() for leased in group]
        if valid_s and addresses:
            self._report(self._kernel.renew(addresses, valid_s))
            self._valid_until = now + valid_s

    def _stay_without_api(self) -> None:
        """Keeps the addresses if nobody else has contact to the API, and takes back those that were just given up.

        No other node can have them: it would have taken them ``EXPIRY_S`` after the last contact of this node, and has
        said since then that it has none itself.
        """
        now = self._clock.monotonic()
        fresh = now - HEARD_S - self._contact > RENEW_S / 2  # Not with each round.
        if not fresh or not all_without_contact(self.alive(), self._node, self.heartbeats.messages, now):
            return
        returned, self._given_up = self._given_up, {}
        if returned and now - self._contact < EXPIRY_S:
            self._log.info("took addresses back: no node has contact to the API", addresses=len(returned))
            self._contact = now - HEARD_S
            self.prepare()
            self.held |= returned
            for address in returned:
                self._repeats[address] = (now, now + _ANNOUNCE_S)
            self.followed()
        self._confirm(now - HEARD_S)

    def _may_hold(self) -> bool:
        return self._clock.monotonic() - self._contact < HOLD_S

    # The addresses

    async def run(self) -> None:
        """Answers for the addresses that this node is elected for, until cancelled."""
        await self.claims.informer.synced.wait()
        await self.leases.informer.synced.wait()
        await self._view.nodes.synced.wait()
        await self._view.advertisements.synced.wait()
        self._adopt()
        self._adopted.set()
        while True:
            await self._round()
            self._is_busy = bool(self._view.balanced or self.held or self._repeats or self._is_due)
            try:
                async with asyncio.timeout(_CHECK_S if self._is_busy else _IDLE_S):
                    await self._wake.wait()  # for a change of an object
                self._wake.clear()
                self._is_busy = self._is_due = True
                self._needed.set()
                await self._clock.sleep(_QUIET_S)
            except TimeoutError:
                continue

    def _adopt(self) -> None:
        """Takes over what a predecessor has left in the kernel, as far as its last renewal still holds.

        The time in the Lease is that of this machine's clock.
        """
        age_s = self.leases.own_age_s()
        if 0 <= age_s < HOLD_S:
            self._renewed = self._contact = self._clock.monotonic() - age_s
        leased: dict[str, set[LeasedAddress]] = {}
        for entry in self._kernel.read():
            leased.setdefault(entry.address, set()).add(entry)
        for address in self.claims.held_by(self._node) if self._may_hold() else ():
            if str(address) in leased:
                self.held[address] = frozenset(leased.pop(str(address)))
        self._report(self._kernel.remove([entry for group in leased.values() for entry in group]))

    async def _round(self) -> None:
        now = self._clock.monotonic()
        if (self.held or self._given_up) and not self.has_contact():
            self._stay_without_api()
        if self.held and not self._may_hold():
            self._log.warning("gave up addresses: the lease could not be renewed", addresses=len(self.held))
            self._given_up = dict(self.held)
            self._drop(tuple(self.held))
            self._is_due = True
        if self.held and now + lifetime_s(self._contact, now) > self._valid_until + _LONGER_S:
            self._confirm(self._contact)  # Lifetimes are whole seconds: after a slow renewal they can be longer now.
        self._announce_again(now)
        if not self._view.is_known or not self.has_contact():
            return
        alive = self.liveness.alive(now)
        inputs = (self._view.version, alive)
        if inputs != self._planned:
            self._planned, self._is_due = inputs, True
            self.choices = self._elector.choose(self._view.facts(alive))
        if self._is_due:
            self._is_due = False
            self.prepare()
            await self._follow(alive)

    async def _follow(self, alive: frozenset[str]) -> None:
        """Stops to answer for addresses of other nodes, and begins to answer for those that are free."""
        mine = {address for address, choice in self.choices.items() if choice.node == self._node}
        released = [a for a in {*self.held, *self.claims.held_by(self._node)} if a not in mine]
        self._drop(released)
        await self._in_parallel(lambda address: self.claims.give_up(address, self._node), released)
        dead = await self._confirmed_dead({self.claims.holder(address) for address in mine if address not in self.held})
        free = [a for a in mine if a not in self.held and self.claims.holder(a) in {"", self._node, *dead}]
        await self._in_parallel(lambda address: self._take(self.choices[address]), free)
        self.followed()
        await self._in_parallel(self.claims.forget, self._leftovers(alive))

    async def _confirmed_dead(self, holders: Collection[str]) -> frozenset[str]:
        """Those of the holders that are dead, also by what the API says now: the watch may be late."""
        now = self._clock.monotonic()
        alive = self.liveness.alive(now)
        suspects = [name for name in holders if name and name not in alive]
        if not suspects or not self.liveness.is_connected(now):
            return frozenset()
        dead = set()
        for name in suspects:
            try:
                if await self.leases.is_dead(name):
                    dead.add(name)
            except _FAILURES:
                self._is_due = True
        return frozenset(dead)

    def _leftovers(self, alive: frozenset[str]) -> list[Address]:
        """Leases of addresses that no Service has and nobody holds; the first node deletes them."""
        if not alive or min(alive) != self._node:
            return []
        holders = {address: self.claims.holder(address) for address in self.claims.known()}
        return [a for a, holder in holders.items() if a not in self.choices and holder not in alive]

    async def _in_parallel(self, write: Callable[[Address], Awaitable[None]], addresses: Iterable[Address]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def limited(address: Address) -> None:
            async with gate, asyncio.timeout(HOLD_S):
                await write(address)

        for failure in await in_parallel([limited(address) for address in addresses]):
            if not isinstance(failure, (TimeoutError, *_FAILURES)):
                raise failure
            self._log.debug("cannot write which node holds an address", problem=failure)
            self._is_due = True

    async def _take(self, choice: L2Choice) -> None:
        address = choice.address
        devices = choice.interfaces or frozenset(filter(None, (self._kernel.own_device(),)))
        leased = frozenset(LeasedAddress(device, str(address)) for device in devices)
        if not leased:
            self._log.warning("no device has the address of this node", address=address)
            return
        is_holder = await self.claims.take(address, self._node)
        valid_s = lifetime_s(self._contact, self._clock.monotonic())
        if not is_holder or not valid_s or not self._may_hold():
            self._is_due = True  # The next round tries again, with younger facts.
            return
        failures = self._kernel.renew(leased, valid_s)
        self._report(failures)
        if len(failures) == len(leased):
            return
        now = self._clock.monotonic()
        self._valid_until = min(self._valid_until, now + valid_s) if self.held else now + valid_s
        self.held[address] = leased
        self.moves += 1
        self.announcements += self._kernel.announce(leased)
        self._repeats[address] = (now + _REPEAT_S, now + _ANNOUNCE_S)
        self.announced(choice)

    def _drop(self, addresses: Iterable[Address]) -> None:
        leased: list[LeasedAddress] = []
        for address in addresses:
            leased += self.held.pop(address, ())
            self._repeats.pop(address, None)
        if leased:
            self._report(self._kernel.remove(leased))
            if self.choices:
                self.followed()

    def _announce_again(self, now: float) -> None:
        due = [address for address, (at, _) in self._repeats.items() if at <= now]
        for address in due:
            _, until = self._repeats.pop(address)
            self.announcements += self._kernel.announce(self.held.get(address, ()))
            if now + _REPEAT_S <= until:
                self._repeats[address] = (now + _REPEAT_S, until)

    def _report(self, failures: Iterable[KernelError]) -> None:
        for failure in failures:
            self._log.warning("the kernel refused an address", problem=failure)
