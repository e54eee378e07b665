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
"""

from collections.abc import Iterable

from podwire.bgp.configuration import BgpConfiguration, BgpSession, Network

METRIC = 2113
_RECOVERY_S = 30
"""How long a restarted BIRD waits for its neighbours before it removes routes that none of them has sent again."""
_LOG_BYTES = 1_000_000
_OWN_ROUTES = (112, 113)
"""The route protocols of podwire, which BIRD does not learn."""
_LOG_CLASSES = {
    "debug": "all",
    "info": "{ info, remote, warning, error, auth, fatal, bug }",
    "warning": "{ warning, error, auth, fatal, bug }",
}


def render(config: BgpConfiguration) -> str:
    """The configuration as text, the same for the same values; sessions are in the order of their names."""
    families = sorted({network.version for network in config.networks})
    sessions = sorted((s for s in config.sessions if s.local.version in families), key=lambda s: s.name)
    parts = [_machine(config, families)]
    if any(session.bfd for session in sessions):
        parts.append(_bfd(config))
    parts += [_family(config, version) for version in families]
    parts += [_session(config, session) for session in sessions]
    return "\n".join(parts)


def _machine(config: BgpConfiguration, families: Iterable[int]) -> str:
    log = config.log_file
    lines = [
        "# Written by podwire; changes are overwritten.",
        f'log "{log}" {_LOG_BYTES} "{log}.1" {_LOG_CLASSES[config.log_level]};',
        *(["debug protocols all;"] if config.log_level == "debug" else []),
        f"router id {config.router_id};",
        f"graceful restart wait {_RECOVERY_S};",
        "protocol device { scan time 10; }",
        f'protocol direct {{ {" ".join(f"ipv{version};" for version in families)} interface "{config.link}"; }}',
    ]
    return _lines(lines)


def _bfd(config: BgpConfiguration) -> str:
    times = "min rx interval 300 ms; min tx interval 300 ms; multiplier 3;"
    return _lines(["protocol bfd {", f'  interface "{config.link}" {{ {times} }};', f"  multihop {{ {times} }};", "}"])


def _family(config: BgpConfiguration, version: int) -> str:
    own = _of(config.networks, version)
    lines = [f"protocol static own{version} {{", f"  ipv{version};"]
    lines += [f"  route {network} blackhole;" for network in own]
    lines += ["}", f"filter kernel_out{version} {{", "  if source != RTS_BGP then reject;"]
    planned = [str(address) for address in config.planned_next_hops if address.version == version]
    pods = _of(config.pod_networks, version)
    if planned and pods:
        lines.append(f"  if bgp_next_hop ~ [ {', '.join(planned)} ] && net ~ {_within(pods)} then reject;")
    lines += [f"  krt_prefsrc = {source};" for source in config.sources if source.version == version]
    learned = " && ".join(f"krt_source != {number}" for number in _OWN_ROUTES)
    lines += [
        "  accept;",
        "}",
        f"protocol kernel kernel{version} {{",
        f"  learn; scan time 10; metric {METRIC}; merge paths on; graceful restart on;",
        f"  ipv{version} {{ import where {learned}; export filter kernel_out{version}; }};",
        "}",
    ]
    return _lines(lines)


def _session(config: BgpConfiguration, session: BgpSession) -> str:
    name, version = session.name, session.local.version
    direct = session.on_link and not session.is_internal
    channel = [f"import filter in_{name};", f"export filter out_{name};"]
    if not direct:
        channel.append("gateway recursive;")
    if session.cluster_id:
        channel.append("next hop self ebgp;")
    if session.add_paths:
        channel.append("add paths on;")
    lines = [
        *_import_filter(config, session),
        *_export_filter(config, session),
        f"protocol bgp {name} {{",
        f"  local {session.local} port {session.local_port} as {session.local_as};",
        f"  neighbor {session.remote} port {session.remote_port} as {session.remote_as};",
        "  direct;" if direct else "  multihop;",
        f"  graceful restart on; graceful restart time {config.restart_time_s};",
        "  connect delay time 1; connect retry time 2; error wait time 1, 10;",
    ]
    if session.waits:
        lines.append("  passive on;")
    if session.password:
        lines.append(f'  password "{session.password}";')
    if not session.is_internal:
        lines.append("  allow local as 1;")
    if session.bfd:
        lines.append("  bfd on;")
    if session.cluster_id:
        lines.append(f"  rr client; rr cluster id {session.cluster_id};")
    lines += [f"  ipv{version} {{ {' '.join(channel)} }};", "}"]
    return _lines(lines)


def _import_filter(config: BgpConfiguration, session: BgpSession) -> list[str]:
    """Own networks are refused: the node itself has the only routes to its pods."""
    version = session.local.version
    lines = [f"filter in_{session.name} {{", f"  if net ~ {_within(_of(config.networks, version))} then reject;"]
    if session.accepts:
        accepted = _of(session.accepts, version)
        lines.append(f"  if !(net ~ {_within(accepted)}) then reject;" if accepted else "  reject;")
    return [*lines, "  accept;", "}"]


def _export_filter(config: BgpConfiguration, session: BgpSession) -> list[str]:
    changes = [_add_community(numbers) for numbers in session.communities]
    changes += [f"bgp_path.prepend({session.local_as});"] * session.prepends
    then = " ".join(["{", *changes, "accept; }"]) if changes else "accept;"
    lines = [f"filter out_{session.name} {{", f"  if source = RTS_STATIC then {then}"]
    pods = _of(config.pod_networks, session.local.version)
    if session.sends == "all":
        lines.append(f"  if source = RTS_BGP then {then}")
    elif session.sends == "pods" and pods:
        lines.append(f"  if source = RTS_BGP && net ~ {_within(pods)} then {then}")
    return [*lines, "  reject;", "}"]


def _add_community(numbers: tuple[int, ...]) -> str:
    attribute = "bgp_community" if len(numbers) == 2 else "bgp_large_community"
    return f"{attribute}.add(({', '.join(map(str, numbers))}));"


def _within(networks: Iterable[Network]) -> str:
    """A set of prefixes: the networks and all networks inside them."""
    return f"[ {', '.join(f'{network}+' for network in networks)} ]"


def _of(networks: Iterable[Network], version: int) -> list[Network]:
    return [network for network in networks if network.version == version]


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
