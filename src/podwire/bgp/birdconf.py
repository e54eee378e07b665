"""The text of a configuration for BIRD 2 (checked with 2.0.12).

The tables: ``master4`` and ``master6`` hold the own networks (protocol ``static``), connected networks (``direct``),
the kernel's other routes (``kernel`` with ``learn``: the default route, by which next hops behind a router resolve) and
what neighbours send. Without ``direct``, next hops of sessions with ``gateway recursive`` have no route, and every
learned route is installed as unreachable.

Only routes of BGP go to the kernel, as protocol ``bird`` (12) with the metric :data:`METRIC`, which is worse than that
of every route of podwire except the one that refuses a node's unused pod addresses. BIRD takes its routes out of the
kernel when it is ended by SIGTERM, and leaves them when it is killed; there is no ``persist``, because a node that
changes to another backend would keep them for ever. ``graceful restart`` (with the option ``-R`` of the program) leaves
the routes of a killed predecessor in place until the neighbours have sent theirs again.

Sessions with the same rules share their filters: the name of a filter follows from its rules.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from podwire.bgp.configuration import BfdTimes, BgpConfiguration, BgpSession, Community, Network, RouteRule
from podwire.state.address import address_text, is_v6

METRIC = 2113
_RECOVERY_S = 30
"""How long a restarted BIRD waits for its neighbours before it removes routes that none of them has sent again."""
_LOG_BYTES = 1_000_000
_OWN_ROUTES = (112, 113)
"""The route protocols of podwire, which BIRD does not learn."""
_BFD_TIMES = "min rx interval 300 ms; min tx interval 300 ms; multiplier 3;"
_LOG_CLASSES = {
    "debug": "all",
    "info": "{ info, remote, warning, error, auth, fatal, bug }",
    "warning": "{ warning, error, auth, fatal, bug }",
    "error": "{ error, auth, fatal, bug }",
}


Filters = tuple[tuple[str, str], tuple[str, str]]
"""Name and text of the filter for routes of a neighbour, and of the one for routes to it."""


class SessionText(NamedTuple):
    """The text of a session, and its filters."""

    session: BgpSession
    filters: Filters
    text: str


class SessionTexts:
    """The texts of sessions, kept while the sessions are the same: a text for many sessions costs the changed ones."""

    def __init__(self) -> None:
        self._basis: object = None
        self._known: dict[str, SessionText] = {}
        self._filters: dict[object, Filters] = {}
        """By the values of a session that make them."""

    def of(self, config: BgpConfiguration, sessions: Sequence[BgpSession]) -> list[str]:
        """The texts of the filters of sessions in the order of their names, then those of the sessions."""
        pods = config.pod_networks if any(session.sends == "pods" for session in sessions) else ()
        basis = (
            *(config.networks, config.service_networks, config.restart_time_s, config.strict_bind),
            *(config.gateways, config.tags, config.unsent, pods),
        )
        if basis != self._basis:
            self._known, self._filters = {}, {}
        known, self._basis, self._known = self._known, basis, {}
        filters: dict[str, str] = {}
        texts = []
        last: Filters | None = None
        for session in sessions:
            entry = known.get(session.name)
            if entry is None or (entry.session is not session and entry.session != session):
                entry = _session(config, session, self._filters_of(config, session))
            self._known[session.name] = entry
            if entry.filters is not last:
                last = entry.filters
                filters.update(last)
            texts.append(entry.text)
        return [*(filters[name] for name in sorted(filters)), *texts]

    def _filters_of(self, config: BgpConfiguration, session: BgpSession) -> Filters:
        """The filters of a session; made once for the sessions of a configuration that have the same."""
        key = (
            *(session.local.version, session.local_as, session.sends, session.accepts),
            *(session.communities, session.prepends, session.imports, session.exports),
        )
        if key not in self._filters:
            imports, exports = _import_rules(config, session), _export_rules(config, session)
            self._filters[key] = (_filter("in", imports), _filter("out", exports))
        return self._filters[key]


def render(config: BgpConfiguration, texts: SessionTexts | None = None) -> str:
    """The configuration as text, the same for the same values; sessions are in the order of their names.

    ``texts`` keeps the texts of sessions for the next call.
    """
    alone = () if config.networks else _families(config.sessions)
    families = sorted({*alone, *(network.version for network in config.networks)})
    sessions = sorted([s for s in config.sessions if s.local.version in families], key=attrgetter("name"))
    parts = [_machine(config, families)]
    if any(session.bfd for session in sessions):
        vrfs = sorted({session.vrf for session in sessions if session.bfd and session.vrf})
        parts.append(_bfd(config, alone=not vrfs))
        parts += [_bfd_of_vrf(vrf, number) for number, vrf in enumerate(vrfs)]
    links = sorted({session.interface for session in sessions if session.interface})
    parts += [_advertisements(link, number) for number, link in enumerate(links)]
    parts += [_family(config, version) for version in families]
    parts += (texts or SessionTexts()).of(config, sessions)
    return "\n".join(parts)


def _machine(config: BgpConfiguration, families: Iterable[int]) -> str:
    log = config.log_file
    devices = ", ".join((*(f'-"{pattern}"' for pattern in config.ignored_devices), f'"{config.link}"'))
    lines = [
        "# Written by podwire; changes are overwritten.",
        f'log "{log}" {_LOG_BYTES} "{log}.1" {_LOG_CLASSES[config.log_level]};',
        *(["debug protocols all;"] if config.log_level == "debug" else []),
        f"router id {config.router_id};",
        "timeformat protocol iso long;",
        f"graceful restart wait {_RECOVERY_S};",
        "protocol device { scan time 10; }",
        f"protocol direct {{ {' '.join(f'ipv{version};' for version in families)} interface {devices}; }}",
    ]
    return _lines(lines)


def _bfd(config: BgpConfiguration, *, alone: bool) -> str:
    """BFD of the main routing table; without ``vrf default`` it would take the sessions of all VRFs, too."""
    lines = ["protocol bfd {", *([] if alone else ["  vrf default;"])]
    lines += [f'  interface "{config.link}" {{ {_BFD_TIMES} }};', f"  multihop {{ {_BFD_TIMES} }};", "}"]
    return _lines(lines)


def _bfd_of_vrf(vrf: str, number: int) -> str:
    every = f'  interface "*" {{ {_BFD_TIMES} }};'
    return _lines([f"protocol bfd bfd{number} {{", f'  vrf "{vrf}";', every, f"  multihop {{ {_BFD_TIMES} }};", "}"])


def _family(config: BgpConfiguration, version: int) -> str:
    own = _of(config.networks, version)
    lines = [f"protocol static own{version} {{", f"  ipv{version};"]
    lines += [f"  route {network} blackhole;" for network in own]
    lines.append("}")
    if services := _of(config.service_networks, version):
        lines += [f"protocol static services{version} {{", f"  ipv{version};"]
        lines += [f"  route {network} blackhole;" for network in services]
        lines.append("}")
    gateways = [(remote, gateway) for remote, gateway in config.gateways if remote.version == version]
    if gateways:
        lines += [f"protocol static gateways{version} {{", f"  ipv{version};"]
        lines += [f"  route {remote}/{remote.max_prefixlen} via {gateway};" for remote, gateway in gateways]
        lines.append("}")
    lines += [f"filter kernel_out{version} {{", "  if source != RTS_BGP then reject;"]
    planned = [text for text in config.planned_next_hops if is_v6(text) == (version == 6)]
    pods = _of(config.pod_networks, version)
    if pods and not config.writes_pod_routes:
        lines.append(f"  if net ~ {_within(pods)} then reject;")
    elif planned and pods:
        lines.append(f"  if bgp_next_hop ~ [ {', '.join(planned)} ] && net ~ {_within(pods)} then reject;")
    lines += [f"  krt_prefsrc = {source};" for source in config.sources if source.version == version]
    learned = " && ".join(f"krt_source != {number}" for number in _OWN_ROUTES)
    lines += [
        "  accept;",
        "}",
        f"protocol kernel kernel{version} {{",
        f"  learn; scan time 2; metric {METRIC}; merge paths on; graceful restart on;",
        f"  ipv{version} {{ import where {learned}; export filter kernel_out{version}; }};",
        "}",
    ]
    return _lines(lines)


def _session(config: BgpConfiguration, session: BgpSession, filters: Filters) -> SessionText:
    name, version = session.name, session.local.version
    imports, exports = filters
    source = f"{address_text(session.local)} " if session.has_source else ""
    direct = bool(session.interface) or (session.on_link and not session.is_internal)
    restart_s = session.restart_time_s or config.restart_time_s
    lines = [
        *_second_filter(session),
        f"protocol bgp {name} {{",
        *([f'  vrf "{session.vrf}";'] if session.vrf else []),
        f"  local {source}port {session.local_port} as {session.local_as};",
        *_neighbor(session),
        "  direct;" if direct else f"  multihop {session.hops};" if session.hops else "  multihop;",
        f"  graceful restart {f'on; graceful restart time {restart_s}' if session.keeps_routes else 'off'};",
        f"  connect delay time 1; connect retry time {session.connect_retry_s}; error wait time 1, 10;",
        *_session_options(config, session),
        f"  ipv{version} {{ {' '.join(_channel(session, imports[0], exports[0], direct=direct))} }};",
        *_second_channel(session),
        "}",
    ]
    return SessionText(session, filters, _lines(lines))


def _filter(prefix: str, rules: Iterable[str]) -> tuple[str, str]:
    """The name and the text of a filter; equal rules have the same name, so that sessions share the filter.

    BIRD needs quadratic time for the filters of a file: 200 ms for 2,000, and 7 ms for 1,000 sessions with two filters.
    """
    lines = list(rules)
    name = f"{prefix}_{blake2b(_lines(lines).encode(), digest_size=8).hexdigest()}"
    return name, _lines([f"filter {name} {{", *lines, "}"])


def _neighbor(session: BgpSession) -> Iterable[str]:
    """The neighbour by its address, or any on a link; each of the latter makes a session with a name of its own."""
    if session.interface:
        yield f'  interface "{session.interface}"; neighbor range fe80::/10 {_remote_as(session)};'
        yield f'  dynamic name "{session.name}_";'
    else:
        yield f"  neighbor {address_text(session.remote)} port {session.remote_port} {_remote_as(session)};"


def _advertisements(interface: str, number: int) -> str:
    """Router advertisements of a router that has no routes for hosts: neighbours learn its address from them."""
    options = "max ra interval 10; default lifetime 0;"
    return _lines([f"protocol radv radv{number} {{", f'  interface "{interface}" {{ {options} }};', "}"])


def _engine_options(session: BgpSession) -> Iterable[str]:
    if session.bfd:
        yield _bfd_option(session.bfd_times)
    if session.router_id:
        yield f"  router id {session.router_id};"


def _remote_as(session: BgpSession) -> str:
    return f"as {session.remote_as}" if session.remote_as else "external"


def _bfd_option(times: BfdTimes | None) -> str:
    if times is None:
        return "  bfd on;"
    passive = " passive on;" if times.passive else ""
    intervals = f"min rx interval {times.receive_ms} ms; min tx interval {times.transmit_ms} ms;"
    return f"  bfd {{ {intervals} multiplier {times.multiplier};{passive} }};"


_UNPRINTABLE = re.compile(r"[^ !#-~]")
_DESCRIPTION_LENGTH = 128
"""A description is cut after so many characters, since only the API server limits the names of objects."""


def _session_options(config: BgpConfiguration, session: BgpSession) -> Iterable[str]:
    """The lines of a session that not every session has."""
    if session.peer:
        yield f'  description "{_UNPRINTABLE.sub("?", session.peer)[:_DESCRIPTION_LENGTH]}";'
    if config.strict_bind and session.has_source:
        yield "  strict bind on;"
    if session.waits:
        yield "  passive on;"
    if session.hops:
        yield "  ttl security on;"
    if session.keepalive_s:
        hold_s = session.hold_s or 3 * session.keepalive_s
        yield f"  hold time {hold_s}; keepalive time {session.keepalive_s};"
    if session.password:
        yield f'  password "{session.password}";'
    limit = session.own_as_limit if session.own_as_limit is not None else int(not session.is_internal)
    if limit:
        yield f"  allow local as {limit};"
    yield from _engine_options(session)
    if session.cluster_id:
        yield f"  rr client; rr cluster id {session.cluster_id};"


def _channel(session: BgpSession, imports: str, exports: str, *, direct: bool) -> Iterable[str]:
    yield f"import filter {imports};"
    yield f"export filter {exports};"
    if not direct:
        yield "gateway recursive;"
    if session.next_hop:
        yield f"next hop {session.next_hop};"
    elif session.cluster_id:
        yield "next hop self ebgp;"
    if session.add_paths:
        yield "add paths on;"


def _families(sessions: Iterable[BgpSession]) -> Iterable[int]:
    """The families of sessions."""
    for session in sessions:
        yield session.local.version
        if session.second is not None:
            yield session.second.version


def _second_filter(session: BgpSession) -> Iterable[str]:
    if session.second is not None:
        yield f"filter second_{session.name} {{"
        yield from map(_rule, session.second.exports)
        yield from ("  reject;", "}")


def _second_channel(session: BgpSession) -> Iterable[str]:
    if session.second is not None:
        hop = session.second.next_hop
        next_hop = f"next hop address {hop};" if hop is not None else "extended next hop on; next hop self;"
        options = f"import none; export filter second_{session.name}; {next_hop}"
        yield f"  ipv{session.second.version} {{ {options} }};"


def _import_rules(config: BgpConfiguration, session: BgpSession) -> list[str]:
    """Own networks are refused: the node itself has the only routes to its pods."""
    version = session.local.version
    lines: list[str] = []
    if own := _of((*config.networks, *config.service_networks), version):
        lines.append(f"  if net ~ {_within(own)} then reject;")
    lines += [_rule(rule) for rule in session.imports]
    if session.accepts:
        accepted = _of(session.accepts, version)
        lines.append(f"  if !(net ~ {_within(accepted)}) then reject;" if accepted else "  reject;")
    return [*lines, "  accept;"]


def _export_rules(config: BgpConfiguration, session: BgpSession) -> list[str]:
    version = session.local.version
    changes = [_add_community(numbers) for numbers in session.communities]
    changes += [f"bgp_path.prepend({session.local_as});"] * session.prepends
    then = " ".join(["{", *changes, "accept; }"]) if changes else "accept;"
    lines: list[str] = []
    if any(remote.version == version for remote, _ in config.gateways):
        lines.append(f'  if proto = "gateways{version}" then reject;')
    for network, communities in config.tags:
        if network.version == version:
            added = " ".join(map(_add_community, communities))
            lines.append(f"  if net ~ {_within([network])} then {{ {added} }}")
    lines += [_rule(rule) for rule in session.exports]
    if _of(config.service_networks, version):
        lines.append(f'  if proto = "services{version}" then reject;')
    if unsent := _of(config.unsent, version):
        lines.append(f"  if net ~ {_within(unsent)} then reject;")
    lines.append(f"  if source = RTS_STATIC then {then}")
    pods = _of(config.pod_networks, version)
    if session.sends == "all":
        lines.append(f"  if source = RTS_BGP then {then}")
    elif session.sends == "pods" and pods:
        lines.append(f"  if source = RTS_BGP && net ~ {_within(pods)} then {then}")
    return [*lines, "  reject;"]


def _rule(rule: RouteRule) -> str:
    changes = [f"bgp_local_pref = {rule.local_pref};"] * bool(rule.local_pref)
    changes += [_add_community(numbers) for numbers in rule.added]
    changes += [f"bgp_path.prepend({number});" for number in reversed(rule.prepended)]
    verdict = "accept;" if rule.accept else "reject;"
    then = " ".join(["{", *changes, verdict, "}"]) if changes else verdict
    conditions = list(_conditions(rule))
    return f"  if {' && '.join(conditions)} then {then}" if conditions else f"  {then}"


def _conditions(rule: RouteRule) -> Iterable[str]:
    if rule.network is not None:
        if rule.operator in ("equal", "not equal"):
            yield f"net {'=' if rule.operator == 'equal' else '!='} {rule.network}"
        else:
            lengths = f"{{{rule.lengths[0]},{rule.lengths[1]}}}" if rule.lengths is not None else "+"
            inside = f"net ~ [ {rule.network}{lengths} ]"
            yield inside if rule.operator == "in" else f"!({inside})"
    if rule.interface:
        yield f'defined(ifname) && ifname ~ "{rule.interface}"'
    if rule.learned:
        yield "source = RTS_BGP"
    if rule.community:
        yield f"{_attribute(rule.community)} ~ [({', '.join(map(str, rule.community))})]"
    if rule.path_prefix:
        yield f"bgp_path ~ [= {' '.join(map(str, rule.path_prefix))} * =]"


def _add_community(numbers: Community) -> str:
    return f"{_attribute(numbers)}.add(({', '.join(map(str, numbers))}));"


def _attribute(community: Community) -> str:
    return "bgp_community" if len(community) == 2 else "bgp_large_community"


def _within(networks: Iterable[Network]) -> str:
    """A set of prefixes: the networks and all networks inside them."""
    return f"[ {', '.join(f'{network}+' for network in networks)} ]"


def _of(networks: Iterable[Network], version: int) -> list[Network]:
    return [network for network in networks if network.version == version]


def _lines(lines: Iterable[str]) -> str:
    return "\n".join((*lines, ""))
