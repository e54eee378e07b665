"""The chained plugin ``firewall``: the node's iptables let pods' packets through, and keep bridges apart.

It runs behind the plugin that wires the pod. Where the runtime's directory has no such program, podwire's is installed
under this name, and the agent answers it. ADD writes the rules of :mod:`podwire.cni.chain.firewallrules` and keeps the
pod's addresses in the ledger; DEL and GC delete the rules of these addresses. An address that a later pod has got is
taken from the earlier one, so that a late DEL or GC leaves the later pod's rules. Rules of ``ingressPolicy`` belong to
the bridge and stay, as with the reference plugin (plugins/meta/firewall of containernetworking).

The backend ``firewalld`` adds the pod's addresses to a zone of firewalld (``firewalldZone``, ``trusted`` by default) in
place of the rules that let packets through. Without ``backend``, firewalld is used where it runs.

The backend ``nftables`` writes the same chains by iptables-nft: they must be in the table whose chain FORWARD has the
policy drop, since an accept in a table of podwire's own would not count against it.

Cost: one process to read and one to write for each IP family, some 10 ms; with firewalld a call for each address.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podwire.cni import gojson, spec
from podwire.cni.chain import firewallrules
from podwire.cni.chain.facts import Facts, previous, stale
from podwire.cni.chain.firewallrules import ADMIN_CHAIN, FilterEdit, family_of, host
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import Document
from podwire.errors import CniError, KernelError

TYPE = "firewall"
_NFTABLES, _FIREWALLD = "nftables", "firewalld"
_BACKENDS = ("", "iptables", _NFTABLES, _FIREWALLD)
_ZONE = "trusted"
_POLICIES = ("", "open", "same-bridge", "isolated")
_CHAIN_LENGTH = 28


class Admitted(msgspec.Struct, frozen=True):
    """The addresses whose rules an attachment has, and where: the tables of ``nftables`` or those in use.

    With ``zone`` they are sources of this zone of firewalld instead.
    """

    addresses: list[str]
    nftables: bool = False
    zone: str = ""


class FirewallConf(Document, frozen=True):
    """The configuration of the plugin."""

    backend: str = ""
    firewalld_zone: str = ""
    admin_chain: str = msgspec.field(default="", name="iptablesAdminChainName")
    ingress_policy: str = ""

    @property
    def nftables(self) -> bool:
        """Whether the rules are in nf_tables, whatever kind of iptables is in use."""
        return self.backend == _NFTABLES


class NodeFilter(Protocol):
    """The table ``filter`` of a node; all methods raise KernelError."""

    def read(self, family: str, *, nftables: bool) -> Mapping[str, list[str]]: ...

    def change(self, family: str, lines: Sequence[str], *, nftables: bool) -> None: ...

    def is_bridge(self, name: str) -> bool: ...


class ZoneSources(Protocol):
    """The sources of firewalld's zones; all methods raise KernelError."""

    def runs(self) -> bool: ...

    def add(self, zone: str, source: str) -> None: ...

    def remove(self, zone: str, source: str) -> None: ...

    def has(self, zone: str, source: str) -> bool: ...


class FirewallPlugin:
    """Answers requests of the plugin."""

    def __init__(self, table: NodeFilter, zones: ZoneSources, facts: Facts) -> None:
        self._table = table
        self._zones = zones
        self._facts = facts

    def handle(self, request: CniRequest, _netns: str) -> bytes:
        """Handles a request and returns the text for its standard output.

        Raises: CniError.
        """
        try:
            match request.command:
                case "ADD":
                    return self._add(request)
                case "CHECK":
                    self._check(request)
                case "DEL":
                    self._delete(request)
                case "GC":
                    for name in stale(self._facts, TYPE, request):
                        self.forget(name)
        except KernelError as failure:
            raise CniError(
                spec.INTERNAL, f"cannot write the firewall rules of {request.pod_name}", str(failure)
            ) from None
        return b""

    def _add(self, request: CniRequest) -> bytes:
        conf, result = _conf(request), previous(request)
        bridge, addresses, name = self._bridge(conf, result), _addresses(result), f"{TYPE} {request.key}"
        zone = self._zone(conf.backend, conf.firewalld_zone)
        self._take_over(addresses, name)
        self._facts.remember(name, msgspec.json.encode(Admitted(addresses, conf.nftables, zone)))
        for address in addresses if zone else ():
            self._zones.add(zone, host(address))
        for family, edit in self._edits(conf, addresses, bridge, zone):
            self._table.change(family, edit.lines, nftables=conf.nftables)
        return spec.render_result(result, request.conf.cni_version)

    def _check(self, request: CniRequest) -> None:
        conf, result = _conf(request), previous(request)
        bridge, zone = self._bridge(conf, result), self._zone(conf.backend, conf.firewalld_zone)
        sources = [host(x) for x in _addresses(result)] if zone else []
        missing = [f"source {x} of zone {zone}" for x in sources if not self._zones.has(zone, x)]
        edits = self._edits(conf, _addresses(result), bridge, zone)
        missing += [rule for _, edit in edits for rule in edit.missing]
        if missing:
            raise CniError(spec.CHECK_FAILED, f"firewall rules of {request.pod_name} are missing", "; ".join(missing))

    def _delete(self, request: CniRequest) -> None:
        name = f"{TYPE} {request.key}"
        if self._facts.fact(name):
            self.forget(name)
        elif request.conf.prev_result is not None:
            result = spec.parse_result(request.conf.prev_result, request.conf.cni_version)
            held = {address for body in self._facts.facts(f"{TYPE} ").values() for address in _decode(body).addresses}
            addresses = [address for address in _addresses(result) if address not in held]
            backend, zone = (str(request.document.get(name) or "") for name in ("backend", "firewalldZone"))
            self._dismiss(Admitted(addresses, backend == _NFTABLES, self._zone(backend, zone)))

    def forget(self, name: str) -> None:
        """Deletes the rules of an attachment, by the name of its fact.

        Raises: KernelError, CniError.
        """
        self._dismiss(_decode(self._facts.fact(name)))
        self._facts.remember(name, b"")

    def _dismiss(self, admitted: Admitted) -> None:
        if admitted.zone:
            for address in admitted.addresses if self._zones.runs() else ():
                self._zones.remove(admitted.zone, host(address))
            return
        for family, own in _by_family(admitted.addresses).items():
            edit = FilterEdit(self._table.read(family, nftables=admitted.nftables))
            firewallrules.dismiss(edit, own)
            self._table.change(family, edit.lines, nftables=admitted.nftables)

    def _take_over(self, addresses: Iterable[str], name: str) -> None:
        """Removes addresses from the facts about other attachments."""
        new = frozenset(addresses)
        for other, body in self._facts.facts(f"{TYPE} ").items():
            held = _decode(body)
            if other != name and not new.isdisjoint(held.addresses):
                remainder = msgspec.structs.replace(held, addresses=[x for x in held.addresses if x not in new])
                self._facts.remember(other, msgspec.json.encode(remainder))

    def _zone(self, backend: str, zone: str) -> str:
        """The zone of firewalld that the pods' addresses belong to; empty: rules of iptables let them through."""
        if backend == _FIREWALLD or (not backend and self._zones.runs()):
            return zone or _ZONE
        return ""

    def _edits(
        self, conf: FirewallConf, addresses: Sequence[str], bridge: str, zone: str
    ) -> list[tuple[str, FilterEdit]]:
        """The changes of iptables by family; with a zone of firewalld those of ``ingressPolicy`` alone."""
        edits: list[tuple[str, FilterEdit]] = []
        for family, own in _by_family(addresses).items() if bridge or not zone else ():
            edit = FilterEdit(self._table.read(family, nftables=conf.nftables))
            if not zone:
                firewallrules.admit(edit, own, conf.admin_chain or ADMIN_CHAIN)
            if bridge:
                firewallrules.isolate(edit, bridge, conf.ingress_policy)
            edits.append((family, edit))
        return edits

    def _bridge(self, conf: FirewallConf, result: spec.CniResult) -> str:
        """The bridge that ``ingressPolicy`` is about; empty without a policy."""
        if conf.ingress_policy in ("", "open"):
            return ""
        first = next((interface.name for interface in result.interfaces if not interface.sandbox), "")
        if not self._table.is_bridge(first):
            problem = f"ingressPolicy {conf.ingress_policy} is for pods on a bridge"
            raise CniError(spec.INVALID_CONFIG, problem, f"the first device of prevResult is {first or 'absent'}")
        return first


def _conf(request: CniRequest) -> FirewallConf:
    document: dict[str, Any] = request.document
    try:
        conf = gojson.convert(document, FirewallConf)
    except msgspec.ValidationError as problem:
        raise CniError(spec.DECODING_FAILURE, "the configuration of firewall is not valid", str(problem)) from problem
    if conf.backend not in _BACKENDS:
        detail = "expected iptables (the kind in use on the node), nftables (iptables-nft) or firewalld"
        raise CniError(spec.UNSUPPORTED_FIELD, f"podwire does not support backend: {conf.backend}", detail)
    if conf.ingress_policy not in _POLICIES:
        detail = "expected open, same-bridge or isolated"
        raise CniError(spec.INVALID_CONFIG, f"unknown ingressPolicy: {conf.ingress_policy!r}", detail)
    chain = conf.admin_chain
    if (
        len(chain) > _CHAIN_LENGTH
        or chain.startswith(("-", "!"))
        or any(not x.isprintable() or x in " \"'" for x in chain)
    ):
        detail = f"expected at most {_CHAIN_LENGTH} characters without spaces and quotes"
        raise CniError(spec.INVALID_CONFIG, f"invalid iptablesAdminChainName: {chain!r}", detail)
    return conf


def _addresses(result: spec.CniResult) -> list[str]:
    return [str(address) for address in spec.addresses_of(result)]


def _by_family(addresses: Iterable[str]) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for address in addresses:
        families.setdefault(family_of(address), []).append(address)
    return families


def _decode(body: bytes) -> Admitted:
    return msgspec.json.decode(body, type=Admitted)
