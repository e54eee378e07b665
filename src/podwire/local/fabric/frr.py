"""The router of a fabric with several segments as a BGP speaker: configuration of FRR, and its processes (pure).

The same part as :mod:`podwire.local.fabric.bird` by another program: ``bgpd`` takes sessions from every address of a
segment (``bgp listen range``), and routes inside the pod networks and :data:`BALANCED` alone; ``zebra`` writes them to
the kernel. Sockets and files of both are in a folder of the cluster, so an FRR of the machine itself is not touched.

``bgpd`` cannot read its file again. :func:`changes` compares the running configuration with the file, and gives the
commands that lead from the one to the other, so sessions stay; frr-reload.py does the same, which Debian has in another
package. FRR prints a configuration in the form of :func:`render`: the lines of a context are indented by one space
more. Checked with FRR 8.4.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network

from podwire.local.fabric.plan import AS_NUMBER, BALANCED, ROUTER
from podwire.local.topology import Segment, Topology
from podwire.runtime.program import Child

VTYSH = "/usr/bin/vtysh"
PROGRAMS = {"zebra": "/usr/lib/frr/zebra", "bgpd": "/usr/lib/frr/bgpd"}
"""By the name of the process, in the order in which they start."""
ENTRY = "frr"
ZEBRA_SOCKET = "zserv.api"
"""The socket by which bgpd gives its routes to zebra."""
_OPTIONS = {"zebra": ("-K", "30"), "bgpd": ("-p", "179")}
"""A restarted zebra keeps the routes of its predecessor for 30 s, until bgpd has sent them again."""
_HEAD = "! Written by podwire; changes are overwritten.\n"
_SESSIONS = 5000
"""The most sessions by ``bgp listen range``; FRR takes no larger number, and its default is 100."""
_PATHS = 64
_LISTS = ("ip prefix-list ", "ipv6 prefix-list ")
_SPEAKER = f"router bgp {AS_NUMBER}"
Context = tuple[str, ...]
"""The lines around a line, from the outside in."""


def router_children(topology: Topology, pod_cidrs: Iterable[str], reload: tuple[str, ...]) -> tuple[Child, ...]:
    """The processes in the router's namespace; the fork server's entry :data:`ENTRY` runs them with their files.

    ``reload`` is the command that makes bgpd follow its file, without the path of the file.
    """
    zebra, bgpd = (f"{topology.run}/router/{name}.conf" for name in PROGRAMS)
    netns, logs = str(topology.netns(ROUTER)), f"{topology.run}/log"
    return (
        Child(
            name="zebra",
            argv=(ENTRY, zebra),
            files={zebra: _HEAD.encode()},
            netns=netns,
            log=f"{logs}/zebra.log",
        ),
        Child(
            name="bgpd",
            argv=(ENTRY, bgpd),
            files={bgpd: render(topology, pod_cidrs).encode()},
            on_file_change="reload",
            check=(VTYSH, "-C", "-f", bgpd),
            reload=(*reload, bgpd),
            netns=netns,
            log=f"{logs}/bgpd.log",
        ),
    )


def command(path: str) -> tuple[str, ...]:
    """The command line of the process with the configuration at ``path``."""
    folder, _, file = path.rpartition("/")
    name = file.removesuffix(".conf")
    return (
        *(PROGRAMS[name], "-u", "root", "-g", "frrvty", "-P", "0", "-f", path, "-i", f"{folder}/{name}.pid"),
        *("-z", f"{folder}/{ZEBRA_SOCKET}", "--vty_socket", folder, "--log", "stdout", *_OPTIONS[name]),
    )


def render(topology: Topology, pod_cidrs: Iterable[str]) -> str:
    """The text of the configuration of bgpd."""
    pods = [ip_network(cidr) for cidr in pod_cidrs]
    families = sorted({network.version for network in pods})
    groups = {version: [(_group(s, version), s) for s in topology.segments] for version in families}
    lines = [f"{_list(v)} {line}" for v in families for line in _accepted((*pods, BALANCED), v)]
    lines += [
        _SPEAKER,
        f" bgp router-id {topology.segment(0).router}",
        " no bgp ebgp-requires-policy",
        " no bgp default ipv4-unicast",
        " bgp bestpath as-path multipath-relax",
        f" bgp listen limit {_SESSIONS}",
    ]
    for version in families:
        for group, segment in groups[version]:
            lines += [f" neighbor {group} peer-group", f" neighbor {group} remote-as external"]
            lines.append(f" bgp listen range {_network(segment, version)} peer-group {group}")
    for version in families:
        lines += [f" address-family ipv{version} unicast", "  redistribute connected"]
        for group, _ in groups[version]:
            lines += [f"  neighbor {group} activate", f"  neighbor {group} prefix-list {_name(version)} in"]
        lines += [f"  maximum-paths {_PATHS}", " exit-address-family"]
    return _HEAD + "\n".join([*lines, "exit"]) + "\n"


def _group(segment: Segment, version: int) -> str:
    return f"segment{segment.number}v{version}"


def _network(segment: Segment, version: int) -> IPv4Network | IPv6Network:
    return segment.network if version == 4 else segment.network6


def _name(version: int) -> str:
    return f"accepted{version}"


def _list(version: int) -> str:
    return f"{'ip' if version == 4 else 'ipv6'} prefix-list {_name(version)}"


def _accepted(networks: Iterable[IPv4Network | IPv6Network], version: int) -> Iterator[str]:
    """The entries of the list of accepted networks; a network alone would not accept those inside it."""
    own = [network for network in networks if network.version == version]
    for number, network in enumerate(own, 1):
        longer = f" le {network.max_prefixlen}" if network.prefixlen < network.max_prefixlen else ""
        yield f"seq {5 * number} permit {network}{longer}"


def changes(running: str, desired: str) -> str:
    """The commands that lead from the running configuration to the desired one; empty when there is no difference.

    Of the running one only the lists of prefixes and the BGP speaker count. Entries of lists are added first, and the
    others are removed last, so that no session is without its list.
    """
    before, after = _contexts(running), _contexts(desired)
    listed, needed = before.pop((), []), after.pop((), [])
    groups = _groups(before) - _groups(after)
    replaced = {_place(line) for line in needed}
    commands = [line for line in needed if line not in listed]
    for context in reversed(list(before)):
        lines = before[context]
        gone = [line for line in reversed(lines) if line not in after.get(context, ()) and not _goes(line, groups)]
        commands += _inside(context, map(_undo, gone))
    for context, lines in after.items():
        commands += _inside(context, (line for line in lines if line not in before.get(context, ())))
    commands += [f"no {line}" for line in listed if _place(line) not in replaced]
    return "".join(f"{command}\n" for command in commands)


def _contexts(text: str) -> dict[Context, list[str]]:
    """The lines of the lists and of the speaker by their contexts, in the order of the text."""
    contexts: dict[Context, list[str]] = {(): []}
    around: list[str] = []
    for indented in text.splitlines():
        line = indented.strip()
        if not line or line.startswith(("!", "exit")):
            continue
        del around[len(indented) - len(indented.lstrip()) :]
        if line.startswith(("router ", "address-family ")):
            around.append(line)
            contexts.setdefault(tuple(around), [])
        elif around or line.startswith(_LISTS):
            contexts[tuple(around)].append(line)
    return {context: lines for context, lines in contexts.items() if not context or context[0] == _SPEAKER}


def _groups(contexts: dict[Context, list[str]]) -> set[str]:
    """The groups of neighbours."""
    return {line.split()[1] for line in contexts.get((_SPEAKER,), ()) if line.endswith(" peer-group")}


def _goes(line: str, groups: set[str]) -> bool:
    """Whether FRR removes a line by itself, because it removes the group of neighbours."""
    noun, name, *rest = line.split()
    return noun == "neighbor" and name in groups and rest != ["peer-group"]


def _place(line: str) -> str:
    """The list and the number of an entry, by which another entry replaces it."""
    return line.partition(" permit ")[0]


def _undo(line: str) -> str:
    return line.removeprefix("no ") if line.startswith("no ") else f"no {line}"


def _inside(context: Context, lines: Iterable[str]) -> list[str]:
    """Commands with those that lead into their context and out of it; none without commands."""
    commands = list(lines)
    return [*context, *commands, *("exit" for _ in context)] if commands else []
