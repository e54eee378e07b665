"""Deletes tracked connections that policies deny after a change, if no later packet of them would be checked.

The kernel checks each packet in the original direction of its connection; replies pass unchecked. So a denied TCP or
SCTP connection ends by itself: packets from the client are dropped, and the server stops without acknowledgements. A
peer that keeps replying without a handshake would continue for ever: datagrams, echo replies, GRE. Such a flow is
deleted from connection tracking, and its next packet is checked as the first packet of a connection.

A flow is deleted if policies deny it now and would also deny it in the opposite direction. If the server may send to
the client anyway, deleting would only swap the directions: the packets of the client would be the replies. TCP flows
are never deleted, nor SCTP flows after a complete handshake, so a connection that is allowed again continues with the
same endpoint.

Only flows of pods or peers that lost access by a change are looked up: a new peer, port or pod costs nothing. After a
full load (the first load, or a load after a refusal) the flows of all pods with policies are looked up. That costs four
walks of the kernel through its table, seven for pods with addresses of both families (360 and 500 ms of one core with
200,000 entries, of which 70 % are TCP and 15 % are UDP without a second answer), in a thread while other work goes on.
Guarantees: 1. a walk begins within 10 ms of the change, or after ten times the duration of the last walk; changes
that arrive before that share one walk; 2. after a failure all flows are looked up again, 0.1 s to 30 s later.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import msgspec
from msgspec.structs import replace

from podwire.errors import KernelError, Unsupported
from podwire.kernel.conntrack import Conntrack, Flow
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.network import read_paths
from podwire.observe.log import Log
from podwire.policy.compile import Compiler
from podwire.policy.compiled import CompiledRule
from podwire.policy.nodepods import PodProfiles, PolicyDelta
from podwire.policy.profile import Profile, ProfileKey
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock

_HANDSHAKES = ("TCP", "SCTP")
_ASSURED = ("UDP", "UDPLITE", "GRE")
"""Protocols without a handshake whose flows the kernel marks as assured after an answer."""
_SOON_S = 0.01
_REST = 10
"""The pause after a walk, as a multiple of the walk's duration."""
_PEERS = 64
"""Up to this number, peers are looked up one by one; above it, all flows of the profile's pods are looked up."""


class Verdicts(msgspec.Struct, frozen=True):
    """The profiles of the addresses of this node's pods, and the addresses of the node."""

    ingress: Mapping[str, Profile]
    """By address; for an address without a profile, no policy applies."""
    egress: Mapping[str, Profile]
    local: frozenset[str] = frozenset()
    """All addresses of the node itself."""
    known: frozenset[str] = frozenset()
    """The addresses of the node that policies match."""

    def __call__(self, flow: Flow) -> bool:
        """Whether a flow must be deleted."""
        source, destination, protocol = flow.original.src, flow.reply.src, flow.protocol
        if protocol == "TCP" or (flow.assured and protocol in _HANDSHAKES):
            return False
        if self.allowed(source, destination, flow.reply.sport, protocol):
            return False
        if flow.reply.dst != source:
            return True  # replies are translated back; deleting the flow ends the translation
        return not self.allowed(destination, source, flow.original.sport, protocol)

    def allowed(self, source: str, destination: str, port: int, protocol: str = "UDP") -> bool:
        """Whether the policies of this node's pods accept a packet; the port of protocols without ports is ignored."""
        if source == destination:
            return True
        egress, ingress = self.egress.get(source), self.ingress.get(destination)
        unseen = destination in self.local and destination not in self.known
        if egress is not None and not unseen and not _accepts(egress, destination, port, protocol):
            return False
        return ingress is None or source in self.local or _accepts(ingress, source, port, protocol)


def _accepts(profile: Profile, peer: str, port: int, protocol: str) -> bool:
    return profile.at(peer).ruling(protocol, port).accept


class Losses:
    """Follows a compiler and returns the addresses whose flows may be denied now."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._pods: dict[str, PodProfiles] = {}
        self._profiles: dict[ProfileKey, Profile] = {}

    def follow(self, delta: PolicyDelta) -> set[str]:
        """The addresses of pods and peers that may have lost access by a change."""
        addresses: set[str] = set()
        pods, profiles = self._compiler.pods, self._compiler.profiles
        loses = cache(self._loses)  # many pods move between the same two profiles
        for pod in delta.pods:
            before, after = self._pods.get(pod), pods.get(pod)
            if before is None or after is None:
                continue
            pairs = ((before.ingress, after.ingress), (before.egress, after.egress))
            if any(loses(old, new) or old in delta.lessened for old, new in pairs):
                addresses.update(after.addresses)
        fewer = {key for key in delta.new_profiles & self._profiles.keys() if loses(key, key)} | delta.lessened
        for key, peers in delta.lost.items():
            if len(peers) > _PEERS:
                fewer.add(key)
            else:
                addresses.update(peers)
        addresses.update(self._having(fewer))
        self._pods, self._profiles = dict(pods), dict(profiles)
        return addresses

    def everything(self) -> set[str]:
        """The addresses of all pods with profiles."""
        return set(self._having(self._compiler.profiles.keys()))

    def _having(self, keys: Iterable[ProfileKey]) -> Iterable[str]:
        lost_profiles = set(keys)
        for pod in self._compiler.pods.values() if lost_profiles else ():
            if pod.ingress in lost_profiles or pod.egress in lost_profiles:
                yield from pod.addresses

    def _loses(self, old: ProfileKey | None, new: ProfileKey | None) -> bool:
        """Whether a pod that changed from the profile ``old`` to ``new`` may have lost access."""
        if new is None:
            return False
        before, after = self._profiles.get(old) if old is not None else None, self._compiler.profiles[new]
        return before is not after and (before is None or may_lose(before, after))


def may_lose(before: Profile, after: Profile) -> bool:
    """Whether ``after`` may drop traffic that ``before`` accepts; False is certain, True is not."""
    rules = (*before.rules, *after.rules)
    if any(rule.action != "Accept" or rule.tier != "Namespace" or rule.audit for rule in rules):
        return True
    old_key, new_key = before.key, after.key
    if before.isolated < after.isolated or old_key.own_node_egress > new_key.own_node_egress:
        return True
    return old_key.named != new_key.named or not _meanings(before.rules) <= _meanings(after.rules)


def _meanings(rules: Iterable[CompiledRule]) -> set[CompiledRule]:
    return {replace(rule, policy="", place=0) for rule in rules}


Forget = Callable[[Callable[[frozenset[str]], Verdicts], Iterable[str]], list[Flow]]


class FlowKeeper:
    """Deletes the flows in the kernel that policies no longer allow."""

    def __init__(self, compiler: Compiler, clock: Clock, forget: "Forget") -> None:
        """``forget`` is :func:`forget` of this module, which runs in a thread."""
        self._compiler = compiler
        self._clock = clock
        self._forget = forget
        self._losses = Losses(compiler)
        self._addresses: set[str] = set()
        self._wake = asyncio.Event()
        self._log = Log("policy")
        self._strict = False
        self.forgotten = 0
        """How many flows were deleted so far."""

    def configure(self, *, strict: bool) -> None:
        """Sets whether flows that policies deny are deleted; turning this on also checks the existing flows."""
        if strict and not self._strict:
            self._look(self._losses.everything())
        self._strict = strict

    def committed(self, delta: PolicyDelta, *, full: bool = False) -> None:
        """Reports that a change is in force; ``full``: everything was loaded, so earlier changes are not known."""
        lost = self._losses.follow(delta)
        if self._strict:
            self._look(self._losses.everything() if full else lost)

    def _look(self, addresses: set[str]) -> None:
        if addresses:
            self._addresses |= addresses
            self._wake.set()

    async def run(self) -> None:
        """Deletes denied flows until cancelled."""
        backoff = Backoff(0.1, 30.0)
        while True:
            await self._wake.wait()
            await self._clock.sleep(_SOON_S)
            self._wake.clear()
            addresses, self._addresses = self._addresses, set()
            if not (self._strict and addresses):
                continue
            started = self._clock.monotonic()
            try:
                forgotten = await asyncio.to_thread(self._forget, self._verdicts, addresses)
            except Unsupported as missing:
                self._log.warning(
                    "the kernel cannot delete tracked flows: a denied flow continues while its peer replies",
                    missing=missing,
                )
                self._strict = False
                continue
            except KernelError as failure:
                self._log.warning("cannot delete flows that policies deny", failure=failure)
                self._look(addresses)
                await self._clock.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            self._tell(forgotten)
            await self._clock.sleep(_REST * (self._clock.monotonic() - started))

    def _tell(self, forgotten: list[Flow]) -> None:
        self.forgotten += len(forgotten)
        if forgotten:
            self._log.info("deleted flows that policies deny", flows=len(forgotten), first=str(forgotten[0]))

    def _verdicts(self, local: frozenset[str]) -> Verdicts:
        return verdicts(self._compiler, local)


def verdicts(compiler: Compiler, local: frozenset[str] = frozenset()) -> Verdicts:
    """The current verdicts; ``local`` are the addresses of the node's devices."""
    ingress: dict[str, Profile] = {}
    egress: dict[str, Profile] = {}
    for pod in tuple(compiler.pods.values()):
        for profiles, key in ((ingress, pod.ingress), (egress, pod.egress)):
            profile = compiler.profiles.get(key) if key is not None else None
            if profile is not None:
                profiles.update(dict.fromkeys(pod.addresses, profile))
    return Verdicts(ingress, egress, local, compiler.own_addresses())


def forget(
    judge: Callable[[frozenset[str]], Verdicts], addresses: Iterable[str], netns: NetnsPath = None
) -> list[Flow]:
    """Deletes the denied flows of some addresses from the kernel; returns the deleted flows.
    Raises: KernelError.
    """
    with Netlink(netns) as netlink:
        local = frozenset(address.cidr.partition("/")[0] for address in read_paths(netlink).addresses)
    verdict, holding = judge(local), tuple(addresses)
    with Conntrack(netns) as conntrack:
        forgotten = conntrack.forget(verdict, holding, assured=False)
        for protocol in _ASSURED:
            forgotten += conntrack.forget(verdict, holding, protocol, assured=True)
    return forgotten
