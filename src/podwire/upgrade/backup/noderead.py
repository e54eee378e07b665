"""Reads the network of this node as texts: files of the container runtime, CNI programs, and state of the kernel.

Each kind of kernel state is one text, in the syntax of the program that people use for it: nft, iptables-save, ip,
ipset, ipvsadm. Counters, handles and timeouts are left out where the program can leave them out. A kind that the kernel
lacks, or that no program here can read, is a text with the reason in a line that begins with ``#``.

Nothing is changed: tables of legacy iptables are only read where they exist, since the program makes them otherwise.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from podwire.errors import KernelError, Unsupported
from podwire.kernel import conntrack, iptables, network
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES, Iptables
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.runtime.child import call
from podwire.upgrade.backup.transfer import NodeFile
from podwire.upgrade.nodepods import HOLD, SUFFIXES

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S = 120.0
_IPTABLES_KINDS: tuple[iptables.Kind, ...] = ("nft", "legacy")


def read(conf_dir: Path, bin_dir: Path) -> Iterator[NodeFile]:
    """The files of this node, in the order of their kinds and names."""
    yield from configurations(conf_dir)
    yield NodeFile(kind="programs", name="cni", data=programs(bin_dir).encode())
    for name, reader in KERNEL_KINDS.items():
        try:
            text = reader()
        except (KernelError, OSError, Unsupported) as failure:
            text = f"# cannot be read: {failure}\n"
        yield NodeFile(kind="kernel", name=name, data=text.encode())


def configurations(conf_dir: Path) -> Iterator[NodeFile]:
    """The network configurations of the container runtime, in the order in which it looks at them.

    Other files may hold credentials and are left out, and so is the copy that an upgrade holds: a restore that wrote it
    would keep it in force for good.
    """
    for path in sorted(conf_dir.iterdir()) if conf_dir.is_dir() else ():
        if path.suffix in SUFFIXES and not path.name.startswith((".", HOLD)) and path.is_file():
            yield NodeFile(kind="configuration", name=path.name, data=path.read_bytes())


def programs(bin_dir: Path) -> str:
    """Name, mode, size and SHA-256 of each CNI program, one a line."""
    result = []
    for path in sorted(bin_dir.iterdir()) if bin_dir.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            status = path.stat()
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            result.append(f"{path.name} {status.st_mode & 0o777:o} {status.st_size} {digest}\n")
    return "".join(result)


def _nft() -> str:
    program = shutil.which("nft", path=_PATH)
    if program is not None:
        finished = call((program, "-s", "list", "ruleset"), env={"PATH": _PATH, "LC_ALL": "C"}, timeout_s=_TIMEOUT_S)
        if finished.code == 0:
            return finished.output.decode(errors="replace")
    with Nft() as nft:
        return "".join(_table(nft, family, name) for family, name in sorted(nft.tables()))


def _table(nft: Nft, family: str, name: str) -> str:
    try:
        table = nft.read(family, name)
    except KernelError as failure:
        return f"# table {family} {name}: cannot be read: {failure}\n"
    return f"{table}\n" if table is not None else ""


def _iptables(family: str, kind: iptables.Kind) -> Callable[[], str]:
    def reader() -> str:
        if kind == "legacy":
            used = bool(iptables.legacy_tables_of(family))
        else:
            used = any(name == family for name, _ in iptables.nft_tables())
        if not used:
            return ""
        installed = iptables.find(kind)
        if installed is None:
            return f"# cannot be read: iptables of the kind {kind} is not installed here\n"
        with Iptables(family, installed) as tool:
            saved = tool.save()
        return "".join(f"{line}\n" for line in saved.splitlines() if not line.startswith("#"))

    return reader


def _network(fields: tuple[str, ...]) -> Callable[[], str]:
    def reader() -> str:
        with Netlink() as netlink:
            state = network.read_paths(netlink)
        return "".join(f"{line}\n" for field in fields for line in sorted(map(str, getattr(state, field))))

    return reader


def _ipset() -> str:
    with IpSets() as sets:
        texts = []
        for name in sorted(sets.names()):
            try:
                value = sets.read(name)
            except Unsupported as failure:
                texts.append(f"# set {name}: {failure}")
            else:
                texts.append(str(value) if value is not None else "")
    return "".join(f"{text.rstrip()}\n" for text in texts if text)


def _ipvs() -> str:
    if not Path("/proc/net/ip_vs").exists():
        return ""  # asking the kernel would load the module
    with Ipvs() as ipvs:
        return "".join(f"{server}\n" for server in sorted(map(str, ipvs.read())))


def _conntrack() -> str:
    occupancy = conntrack.occupancy()
    return f"entries {occupancy.entries}\nlimit {occupancy.limit}\n" if occupancy is not None else ""


def _sysctls() -> str:
    """The settings of the kernel that decide whether packets are forwarded."""
    result = []
    for name in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/bridge/bridge-nf-call-iptables",
                 "net/ipv4/conf/all/rp_filter", "net/netfilter/nf_conntrack_max"):  # fmt: skip
        path = Path("/proc/sys", name)
        if path.exists() and os.access(path, os.R_OK):
            result.append(f"{name.replace('/', '.')} = {path.read_text().strip()}\n")
    return "".join(result)


KERNEL_KINDS: Mapping[str, Callable[[], str]] = {
    "nft": _nft,
    **{
        f"{'ip' if family == 'ip' else 'ip6'}tables-{kind}": _iptables(family, kind)
        for family in FAMILIES
        for kind in _IPTABLES_KINDS
    },
    "links": _network(("links", "addresses")),
    "routes": _network(("routes",)),
    "rules": _network(("rules",)),
    "ipset": _ipset,
    "ipvs": _ipvs,
    "conntrack": _conntrack,
    "sysctl": _sysctls,
}
"""The kinds of kernel state and their readers."""
