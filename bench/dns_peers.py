"""The name servers that ``bench.dns`` compares with: dnsmasq, unbound, BIND and Knot Resolver, with the same names.

Each runs on loopback with one thread, answers the cluster's names from its own form of the same data (a hosts file,
local data, zone files, hints), and asks the same upstream server for all other names. Debian packages: `dnsmasq-base`,
`unbound`, `bind9`, `knot-resolver`. One that is not installed is left out and named.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

_SBIN = "/usr/sbin:/usr/bin"
_DOMAIN = "default.svc.cluster.local"
_READY_S = 60.0

Addresses = list[tuple[str, str]]
"""Name and address; a name may have several."""


class Peer(NamedTuple):
    """A running server; ``unknown`` are words of the kinds of questions that it has no data for."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    unknown: tuple[str, ...]


class PeerSetup(NamedTuple):
    """The folder of a server, its port, the port of the upstream server, and its data."""

    folder: Path
    port: int
    upstream: int
    addresses: Addresses


def hosts_file(addresses: Iterable[tuple[str, str]]) -> str:
    """The names as a hosts file."""
    return "".join(f"{address} {name}.{_DOMAIN}\n" for name, address in addresses)


def _reverse(address: str) -> str:
    return ".".join(reversed(address.split(".")))


def dnsmasq(setup: PeerSetup) -> list[str]:
    """The command of dnsmasq."""
    (setup.folder / "hosts").write_text(hosts_file(setup.addresses))
    return ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root",
            f"--addn-hosts={setup.folder / 'hosts'}", f"--port={setup.port}", "--listen-address=127.0.0.1",
            "--bind-interfaces", "--local=/cluster.local/", "--dns-forward-max=1000", "--pid-file=",
            f"--server=127.0.0.1#{setup.upstream}", "--cache-size=10000"]  # fmt: skip


def unbound(setup: PeerSetup) -> list[str]:
    """The command of unbound; its data are those of a static zone."""
    lines = [
        "server:",
        " interface: 127.0.0.1",
        f" port: {setup.port}",
        ' username: ""',
        ' chroot: ""',
        " num-threads: 1",
        " use-syslog: no",
        ' pidfile: ""',
        f' directory: "{setup.folder}"',
        " do-not-query-localhost: no",
        ' module-config: "iterator"',
        ' local-zone: "cluster.local." static',
        ' local-zone: "10.in-addr.arpa." static',
        " msg-cache-size: 64m",
        " rrset-cache-size: 64m",
    ]
    for name, address in setup.addresses:
        lines.append(f' local-data: "{name}.{_DOMAIN}. 5 A {address}"')
        lines.append(f' local-data-ptr: "{address} 5 {name}.{_DOMAIN}."')
    lines += ["remote-control:", " control-enable: no", "forward-zone:", ' name: "."']
    lines.append(f" forward-addr: 127.0.0.1@{setup.upstream}")
    path = setup.folder / "unbound.conf"
    path.write_text("\n".join(lines) + "\n")
    return ["unbound", "-d", "-c", str(path)]


def bind(setup: PeerSetup) -> list[str]:
    """The command of BIND; its data are two zone files."""
    head = "$TTL 5\n@ SOA ns hostmaster 1 7200 1800 86400 5\n@ NS ns.cluster.local.\n"
    names = "".join(f"{name}.default.svc A {address}\n" for name, address in setup.addresses)
    services = "".join(f"_http._tcp.{name}.default.svc SRV 0 100 80 {name}.default.svc\n" for name, _ in
                       setup.addresses if name.startswith("web-"))  # fmt: skip
    (setup.folder / "cluster").write_text(f"{head}ns A 127.0.0.1\n{names}{services}")
    pointers = "".join(
        f"{_reverse(address).removesuffix('.10')} PTR {name}.{_DOMAIN}.\n" for name, address in setup.addresses
    )
    (setup.folder / "reverse").write_text(head + pointers)
    zone = 'zone "{}" {{ type primary; file "{}"; }};'
    (setup.folder / "named.conf").write_text(
        f'options {{ directory "{setup.folder}"; listen-on port {setup.port} {{ 127.0.0.1; }}; '
        " listen-on-v6 { none; };"
        f" recursion yes; allow-query {{ any; }}; dnssec-validation no; pid-file none; session-keyfile none;"
        f" forward only; forwarders {{ 127.0.0.1 port {setup.upstream}; }}; tcp-clients 1000; }};\n"
        "controls {};\n" + zone.format("cluster.local", "cluster") + zone.format("10.in-addr.arpa", "reverse") + "\n"
    )
    return ["named", "-f", "-n", "1", "-c", str(setup.folder / "named.conf")]


def knot_resolver(setup: PeerSetup) -> list[str]:
    """The command of Knot Resolver; its data are hints, so a name has no other type."""
    (setup.folder / "hints").write_text(hosts_file(setup.addresses))
    (setup.folder / "kresd.conf").write_text(
        f"net.listen('127.0.0.1', {setup.port}, {{ kind = 'dns' }})\nlog_level('crit')\n"
        "modules.load('hints')\ntrust_anchors.remove('.')\ncache.size = 100 * MB\n"
        f"hints.add_hosts('{setup.folder / 'hints'}')\n"
        f"policy.add(policy.all(policy.STUB('127.0.0.1@{setup.upstream}')))\n"
    )
    return ["kresd", "-n", "-c", str(setup.folder / "kresd.conf"), str(setup.folder)]


_COMMANDS: dict[str, tuple[Callable[[PeerSetup], list[str]], tuple[str, ...]]] = {
    "dnsmasq": (dnsmasq, ("SRV",)),
    "unbound": (unbound, ("SRV",)),
    "bind": (bind, ()),
    "knot-resolver": (knot_resolver, ("SRV", "NXDOMAIN")),
}


@contextmanager
def peers(folder: Path, first_port: int, upstream: int, addresses: Addresses) -> Iterator[list[Peer]]:
    """The servers that are installed, ended at the end.

    Raises: RuntimeError when one of them does not answer.
    """
    started: list[Peer] = []
    with ExitStack() as stack:
        for number, (name, (command, unknown)) in enumerate(_COMMANDS.items()):
            own = folder / name
            own.mkdir()
            setup = PeerSetup(own, first_port + number, upstream, addresses)
            arguments = command(setup)
            program = shutil.which(arguments[0], path=_SBIN)
            if program is None:
                print(f"bench.dns: no {name}; it is not compared", file=sys.stderr)
                continue
            log = stack.enter_context((own / "log").open("wb"))
            process = subprocess.Popen([program, *arguments[1:]], stdout=log, stderr=log, cwd=own)
            stack.callback(_end, process)
            _await(name, setup.port, process, own / "log")
            started.append(Peer(name, setup.port, process, unknown))
        yield started


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _await(name: str, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Returns when the server answers a question."""
    question = b"\0\1\1\0\0\1\0\0\0\0\0\0\5web-0\7default\3svc\7cluster\5local\0\0\1\0\1"
    deadline = time.monotonic() + _READY_S
    with socket.socket(type=socket.SOCK_DGRAM) as link:
        link.settimeout(0.2)
        link.connect(("127.0.0.1", port))
        while time.monotonic() < deadline and process.poll() is None:
            try:
                link.send(question)
                if link.recv(4096)[6:8] != b"\0\0":
                    return
            except (TimeoutError, ConnectionRefusedError):
                time.sleep(0.1)
    raise RuntimeError(f"{name} does not answer: {log.read_text(errors='replace')[-500:]}")
