"""Open vSwitch: the bridges, ports, flows and tunnel routes of one ovs-vswitchd, read and changed by difference.

The database is read by its socket, bridges and ports are changed by ovs-vsctl, which waits until ovs-vswitchd has done
it. Flows are read by ``ovs-ofctl dump-flows``, because its answer alone has the cookies, and changed by one bundle for
each bridge: ovs-vswitchd takes all changes of a bundle or none, and no packet sees a part of them. Tunnel routes are
read and changed by the control socket.

ovs-vswitchd forgets flows and routes when it ends. It starts with ``flow-restore-wait``, so that the kernel's datapath
forwards as before until :func:`apply` has written the flows; then the setting is removed.

Cost: reading takes one process per bridge (5 ms of CPU) and two requests (1 ms); :func:`differs` starts no process.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import network
from podwire.kernel.failure import refusal
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.ovs_socket import CONTROL, DATABASE, request
from podwire.runtime.child import call
from podwire.state.ovs import (
    OWNER,
    OvsBridge,
    OvsFlow,
    OvsPort,
    OvsRoute,
    OvsSwitch,
    flow_changes,
    own_flows,
    parse_flow,
)

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
RESTORE_WAIT = "flow-restore-wait"
_LIMIT_S = 5.0
_TABLES: Mapping[str, tuple[str, ...]] = {
    "Bridge": ("name", "datapath_type", "fail_mode", "other_config", "external_ids", "ports"),
    "Port": ("_uuid", "name", "interfaces", "external_ids"),
    "Interface": ("_uuid", "name", "type", "ofport", "options"),
    "Open_vSwitch": ("other_config",),
}


class _Held(NamedTuple):
    """The state of a switch: its working objects, the ports of podwire by bridge, and whether it waits for flows."""

    switch: OvsSwitch
    ports: Mapping[str, frozenset[str]]
    waits: bool


def read(netns_path: NetnsPath, controls: Sequence[str]) -> tuple[OvsSwitch, ...]:
    """The switches whose ovs-vswitchd runs; ports without a device that works are left out.

    Raises: KernelError.
    """
    switches = []
    for control in controls:
        try:
            switches.append(_read(netns_path, control, _dump_flows).switch)
        except KernelNotFound:
            continue
    return tuple(switches)


def apply(netns_path: NetnsPath, desired: OvsSwitch) -> tuple[str, ...]:
    """Makes a switch hold the desired state; returns the changes as text, empty when there were none.

    Raises: KernelNotFound while ovs-vswitchd does not run; KernelError.
    """
    held = _read(netns_path, desired.control, _dump_flows)
    removal, addition = _removal(held, desired), _addition(held, desired)
    for arguments in (removal, addition):
        if arguments:
            _vsctl(desired.control, *arguments)
    done = [" ".join(arguments[1:]) for arguments in (removal, addition) if arguments]
    known = {bridge.name: bridge.flows for bridge in held.switch.bridges if bridge.name not in removal}
    for bridge in desired.bridges:
        commands = tuple(flow_changes(known.get(bridge.name, ()), bridge.flows).commands())
        if commands:
            text = "\n".join(commands) + "\n"
            _ofctl(desired.control, bridge.name, "--bundle", "add-flows", text=text)
        done += (f"{bridge.name}: {command}" for command in commands)
    done += _apply_routes(held.switch.routes, desired)
    if held.waits:
        _vsctl(desired.control, "--", "--if-exists", "remove", "open", ".", "other_config", RESTORE_WAIT)
    return tuple(done)


def differs(netns_path: NetnsPath, desired: OvsSwitch) -> bool:
    """Whether the switch lacks something of the desired state; flows that it has in addition are not looked for."""
    try:
        held = _read(netns_path, desired.control, _all_flows)
    except KernelError:
        return True
    bridges = {bridge.name: bridge for bridge in held.switch.bridges}
    for bridge in desired.bridges:
        present = bridges.get(bridge.name)
        if present is None or present.ports != bridge.ports or not set(present.flows).issuperset(bridge.flows):
            return True
    return held.waits or not set(held.switch.routes).issuperset(desired.routes)


# Reading

FlowReader = Callable[[str, str], tuple[OvsFlow, ...]]


def _read(netns_path: NetnsPath, control: str, flows: FlowReader) -> _Held:
    """The state of a switch.

    Raises: KernelNotFound while ovs-vswitchd does not run; KernelError.
    """
    request(control, CONTROL, "version")
    rows = _select(control)
    interfaces = {row["_uuid"][1]: row for row in rows["Interface"]}
    ports = {row["_uuid"][1]: row for row in rows["Port"]}
    bridges, names = [], {}
    with Netlink(netns_path) as netlink:
        for row in rows["Bridge"]:
            if OWNER not in _mapping(row["external_ids"]):
                continue
            own = [port for key in _atoms(row["ports"]) if OWNER in _mapping((port := ports[key])["external_ids"])]
            names[row["name"]] = frozenset(port["name"] for port in own)
            mac = _mapping(row["other_config"]).get("hwaddr", "")
            if row["fail_mode"] != "secure" or (mac and not _works(netlink, row["name"])):
                continue
            working = (_port(netlink, interfaces[_atoms(port["interfaces"])[0]]) for port in own)
            bridge = OvsBridge(
                row["name"],
                row["datapath_type"] or "system",
                mac,
                tuple(port for port in working if port is not None),
                flows(control, row["name"]),
            )
            bridges.append(bridge)
    routes = tuple(_routes(control)) if any(bridge.datapath == "netdev" for bridge in bridges) else ()
    waits = any(RESTORE_WAIT in _mapping(row["other_config"]) for row in rows["Open_vSwitch"])
    return _Held(OvsSwitch(control, tuple(bridges), routes), names, waits)


def _select(control: str) -> dict[str, list[Any]]:
    operations = [{"op": "select", "table": name, "where": [], "columns": list(cols)} for name, cols in _TABLES.items()]
    results = request(control, DATABASE, "transact", ["Open_vSwitch", *operations])
    for result in results:
        if "rows" not in result:
            raise refusal("read", f"ovs {control}", errno.EPROTO, str(result))
    return {name: result["rows"] for name, result in zip(_TABLES, results, strict=True)}


def _atoms(value: Any) -> list[str]:
    """The references of a column: one, or a set of them (RFC 7047 section 5.1)."""
    items = value[1] if value[0] == "set" else [value]
    return [item[1] for item in items]


def _mapping(value: Any) -> dict[str, str]:
    return dict(value[1])


def _port(netlink: Netlink, row: Mapping[str, Any]) -> OvsPort | None:
    """The port of an interface; None when ovs-vswitchd has no device for it."""
    number = row["ofport"]
    if not isinstance(number, int) or number < 1:
        return None
    if row["type"] == "tap" and not _works(netlink, row["name"]):
        return None
    options = tuple(f"{key}={text}" for key, text in _mapping(row["options"]).items())
    return OvsPort(row["name"], row["type"] or "system", number, options)


def _works(netlink: Netlink, device: str) -> bool:
    """Whether a TAP device is there and ovs-vswitchd reads its packets.

    ovs-vswitchd keeps the descriptor of a deleted device, also when a new one has its name; the new one has no carrier.
    """
    try:
        return network.read_raw_link(netlink, device).carrier
    except KernelNotFound:
        return False


def _dump_flows(control: str, bridge: str) -> tuple[OvsFlow, ...]:
    """The flows with the cookie of podwire."""
    return own_flows(_ofctl(control, bridge, "--no-stats", "dump-flows"))


def _all_flows(control: str, bridge: str) -> tuple[OvsFlow, ...]:
    """The flows of table 0, of all owners."""
    lines = str(request(control, CONTROL, "bridge/dump-flows", [bridge])).splitlines()
    return tuple(parse_flow(line) for line in lines if line and not line.startswith("table_id="))


def _routes(control: str) -> Iterator[OvsRoute]:
    """The routes that were added, with the neighbour entries of their gateways."""
    neighbours = {
        (columns[2], columns[0]): columns[1]
        for line in str(request(control, CONTROL, "tnl/neigh/show")).splitlines()
        if len(columns := line.split()) == 3 and ":" in columns[1]
    }
    for line in str(request(control, CONTROL, "ovs/route/show")).splitlines():
        columns = line.split()
        if columns[:1] != ["User:"]:
            continue
        fields = dict(zip(columns[2::2], columns[3::2], strict=False))
        bridge, via = fields.get("dev", ""), fields.get("GW", "")
        if mac := neighbours.get((bridge, via)):
            yield OvsRoute(columns[1], bridge, via, mac, int(fields.get("MARK", "0")))


# Writing


def _removal(held: _Held, desired: OvsSwitch) -> tuple[str, ...]:
    """The arguments of ovs-vsctl that remove objects which are not desired, or which differ from the desired ones."""
    arguments: list[str] = []
    planned = {bridge.name: bridge for bridge in desired.bridges}
    working = {bridge.name: bridge for bridge in held.switch.bridges}
    for name, ports in sorted(held.ports.items()):
        if not _same_bridge(working.get(name), planned.get(name)):
            arguments += ("--", "del-br", name)
            continue
        stays = {port.name for port in working[name].ports if port in planned[name].ports}
        for port in sorted(ports - stays):
            arguments += ("--", "del-port", name, port)
    return tuple(arguments)


def _same_bridge(present: OvsBridge | None, desired: OvsBridge | None) -> bool:
    if present is None or desired is None:
        return False
    return (present.datapath, present.mac) == (desired.datapath, desired.mac)


def _addition(held: _Held, desired: OvsSwitch) -> tuple[str, ...]:
    """The arguments of ovs-vsctl that add what is missing after the removal."""
    arguments: list[str] = []
    working = {bridge.name: bridge for bridge in held.switch.bridges}
    for bridge in desired.bridges:
        present = working.get(bridge.name)
        stays = _same_bridge(present, bridge) and present is not None
        if not stays:
            arguments += ("--", "add-br", bridge.name, "--", "set", "bridge", bridge.name, "fail_mode=secure")
            arguments += (f"datapath_type={bridge.datapath}", f"external_ids:{OWNER}=true")
            arguments += (f'other_config:hwaddr="{bridge.mac}"',) if bridge.mac else ()
        for port in bridge.ports:
            if not stays or present is None or port not in present.ports:
                arguments += _port_arguments(bridge.name, port)
    return tuple(arguments)


def _port_arguments(bridge: str, port: OvsPort) -> tuple[str, ...]:
    add = ("--", "add-port", bridge, port.name, "--", "set", "port", port.name, f"external_ids:{OWNER}=true")
    settings = [f"ofport_request={port.number}", *(f"options:{option}" for option in port.options)]
    if port.type != "system":
        settings.insert(0, f"type={port.type}")
    return (*add, "--", "set", "interface", port.name, *settings)


def _apply_routes(present: Sequence[OvsRoute], desired: OvsSwitch) -> Iterator[str]:
    """Adds and removes tunnel routes; yields the changes as an operator would type them for ovs-appctl."""
    marks = {route.mark for route in desired.routes}
    for route in present:
        if route.mark in marks and route not in desired.routes:
            yield _control(desired.control, "ovs/route/del", route.network, f"pkt_mark={route.mark}")
    for route in desired.routes:
        if route not in present:
            add = (route.network, route.bridge, route.via, f"pkt_mark={route.mark}")
            yield _control(desired.control, "ovs/route/add", *add)
            yield _control(desired.control, "tnl/neigh/set", route.bridge, route.via, route.mac)


def _control(control: str, command: str, *arguments: str) -> str:
    request(control, CONTROL, command, arguments)
    return " ".join((command, *arguments))


def _vsctl(control: str, *arguments: str) -> None:
    _run(control, ("/usr/bin/ovs-vsctl", f"--timeout={_LIMIT_S:.0f}", f"--db=unix:{control}/{DATABASE}", *arguments))


def _ofctl(control: str, bridge: str, *arguments: str, text: str = "") -> str:
    """The output of a command of ovs-ofctl for a bridge; the flows of ``text`` are its input."""
    *options, command = arguments
    source = ("-",) if text else ()
    argv = ("/usr/bin/ovs-ofctl", "-O", "OpenFlow14", *options, command, f"unix:{control}/{bridge}.mgmt", *source)
    return _run(control, argv, text)


def _run(control: str, argv: Iterable[str], text: str = "") -> str:
    """The output of a program of Open vSwitch.

    Raises: KernelError with its message.
    """
    arguments = tuple(argv)
    subject = f"ovs {control}"
    environment = {**ENVIRONMENT, "OVS_RUNDIR": control}
    try:
        finished = call(arguments, env=environment, stdin=text.encode(), timeout_s=_LIMIT_S + 1)
    except OSError as failure:
        raise refusal("run", arguments[0], failure.errno or errno.ENOENT) from failure
    if finished.code != 0:
        lines = finished.errors.decode(errors="replace").strip().splitlines()
        problem = lines[-1] if lines else f"{arguments[0]} did not end in time"
        raise refusal("change", subject, errno.EREMOTEIO, problem)
    return finished.output.decode(errors="replace")
