"""Probes for features of the running kernel, and for programs, each with the answer yes, no or unknown.

A probe uses the feature in a namespace of its own, instead of reading versions or configuration: distributions
backport, and modules load on demand. The answer is ``no`` only when the kernel says that it does not know the feature;
any other failure, above all missing privileges, is ``unknown`` with the reason. A probe takes 1-30 ms; it runs at the
first request, and its answer is kept. A program that is not there is looked for again at each request (0.1 ms).

``minimum`` is the first kernel version that can have the feature; empty for a program.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from podwire.errors import KernelError, KernelExists, KernelNotFound, Unsupported
from podwire.kernel import bpf_state, link_codec, netns, network
from podwire.kernel.attributes import nested, text, u32
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.nft import Nft
from podwire.kernel.uapi import (
    CTRL_ATTR_FAMILY_NAME,
    CTRL_CMD_GETFAMILY,
    GENL_ID_CTRL,
    IFLA_IFNAME,
    IFLA_INFO_DATA,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IPCTNL_MSG_CT_GET,
    NETLINK_GENERIC,
    NETLINK_NETFILTER,
    NFNL_SUBSYS_CTNETLINK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_NEWLINK,
)
from podwire.state.link import Link
from podwire.state.link_kinds import Vlan
from podwire.state.network import NetworkState
from podwire.state.nft import Chain
from podwire.state.nft_diff import AddChain, AddRule, AddTable, Transaction
from podwire.state.nft_rules import LogStatement, Rule, Statement, SynProxy

Verdict = Literal["yes", "no", "unknown"]


class FeatureAnswer(NamedTuple):
    """The result of a probe."""

    name: str
    verdict: Verdict
    reason: str
    minimum: str

    def __bool__(self) -> bool:
        return self.verdict == "yes"

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        since = f", in Linux since {self.minimum}" if self.minimum and self.verdict != "yes" else ""
        return f"{self.name}: {self.verdict}{why}{since}"


class Feature(NamedTuple):
    """A probe: returns for yes; raises Unsupported for no and KernelError for unknown."""

    minimum: str
    probe: Callable[[], None]


def _link(kind: str, data: bytes = b"") -> Callable[[], None]:
    """A probe for a kind of device. EEXIST counts as yes: some modules create a device themselves (tunl0 of ipip)."""

    def probe() -> None:
        descriptor = netns.create_anonymous()
        try:
            with Netlink(descriptor) as scratch:
                info = [text(IFLA_INFO_KIND, kind), *([nested(IFLA_INFO_DATA, data)] if data else [])]
                body = link_codec.header() + text(IFLA_IFNAME, "probe") + nested(IFLA_LINKINFO, *info)
                with contextlib.suppress(KernelExists):
                    scratch.request(Message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, "add", f"link {kind}"))
        finally:
            os.close(descriptor)

    return probe


def _lower_link(kind: str) -> Callable[[], None]:
    """A probe for a kind with a lower device: without one, EINVAL or ENODEV shows that the kernel knows the kind."""

    def probe() -> None:
        try:
            _link(kind)()
        except KernelNotFound:
            return
        except KernelError as failure:
            if failure.errno != errno.EINVAL:
                raise

    return probe


def _locked_port(port: Link) -> Callable[[], None]:
    """A probe for a kind of device as a locked port of a bridge; older kernels ignore the setting silently."""

    def probe() -> None:
        descriptor = netns.create_anonymous()
        try:
            with Netlink(descriptor) as scratch:
                member = replace(port.over("below"), name="port", master="probe", locked=True, alias="probe")
                below = Link("below", "veth", peer="beside")
                network.add(scratch, NetworkState(links=(Link("probe", "bridge"), below, member))).check()
                if not network.read_link(scratch, "port").locked:
                    raise Unsupported("locked bridge ports", detail="the setting is ignored")
        finally:
            os.close(descriptor)

    return probe


def _file(path: str, feature: str) -> Callable[[], None]:
    def probe() -> None:
        if not Path(path).exists():
            raise Unsupported(feature, detail=f"{path} does not exist")

    return probe


def _nftables() -> None:
    """The kernel may know the subsystem without any family of tables, or without NAT."""
    chain = Chain(name="probe", type="nat", hook="prerouting")
    descriptor = netns.create_anonymous()
    try:
        with Nft(descriptor) as scratch:
            scratch.commit(Transaction("ip", "probe", (AddTable(), AddChain(chain))))
    finally:
        os.close(descriptor)


def _ingress() -> None:
    """A table for all families can see packets before routing and connection tracking, bound to a device."""
    descriptor = netns.create_anonymous()
    try:
        with Nft(descriptor) as scratch:
            chain = Chain(name="probe", type="filter", hook="ingress", device="lo")
            scratch.commit(Transaction("inet", "probe", (AddTable(), AddChain(chain))))
    finally:
        os.close(descriptor)


def _statement(feature: str, statement: Statement) -> Callable[[], None]:
    """A rule can have the statement; for a log to a group, nft_log and nfnetlink_log are both needed."""

    def probe() -> None:
        descriptor = netns.create_anonymous()
        try:
            with Nft(descriptor) as scratch:
                rule = AddRule("probe", Rule((statement,)))
                scratch.commit(Transaction("ip", "probe", (AddTable(), AddChain(Chain(name="probe")), rule)))
        except KernelNotFound as failure:
            raise Unsupported(feature, detail=failure.detail) from failure
        finally:
            os.close(descriptor)

    return probe


def _dump(subsystem: int, message: int) -> Callable[[], None]:
    def probe() -> None:
        with Netlink(None, NETLINK_NETFILTER) as scratch:
            request = Message(subsystem << 8 | message, 0, bytes((2, 0, 0, 0)), "ask", "nfnetlink")
            try:
                scratch.dump(request)
            except KernelError as failure:
                if failure.errno == errno.EINVAL:
                    raise Unsupported("nfnetlink", detail="the kernel knows no such subsystem") from failure
                raise

    return probe


def _generic(family: str) -> Callable[[], None]:
    def probe() -> None:
        with Netlink(None, NETLINK_GENERIC) as scratch:
            body = struct.pack("=BBxx", CTRL_CMD_GETFAMILY, 1) + text(CTRL_ATTR_FAMILY_NAME, family)
            try:
                scratch.get(Message(GENL_ID_CTRL, 0, body, "find", f"generic netlink family {family}"))
            except KernelNotFound as failure:
                raise Unsupported(family, detail="the kernel has no such netlink family") from failure

    return probe


PROGRAMS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs of backends are looked for, whatever the environment of the agent."""


def _executable(path: str, feature: str) -> Callable[[], None]:
    """A probe for a program that is always run from the same place."""

    def probe() -> None:
        if not os.access(path, os.X_OK):
            raise Unsupported(feature, detail=f"{path} is no program")

    return probe


def _program(name: str, package: str, *files: str) -> Callable[[], None]:
    """A probe for a program of a Debian package, and for files that it needs."""

    def probe() -> None:
        for path in files:
            _file(path, name)()
        if shutil.which(name, path=PROGRAMS_PATH) is None:
            problem = f"the program {name} is not installed (in Debian's package {package}; looked in {PROGRAMS_PATH})"
            raise Unsupported(name, detail=problem)

    return probe


def _wireguard_engine() -> None:
    """The program, or the kernel's WireGuard, which is asked for last, because that loads its module."""
    try:
        _program("wireguard-go", "wireguard-go", "/dev/net/tun")()
    except Unsupported as missing:
        try:
            _link("wireguard")()
        except Unsupported:
            raise missing from None


def _open_vswitch() -> None:
    """ovs-vswitchd and its database, and a datapath. The kernel's is asked for last, because that loads its module."""
    for program in ("ovs-vswitchd", "ovsdb-server"):
        _program(program, "openvswitch-switch")()
    try:
        _file("/dev/net/tun", "tun")()
        _nftables()
    except Unsupported as missing:
        try:
            _generic("ovs_datapath")()
        except Unsupported as failure:
            needed = "the kernel has no openvswitch, and without it /dev/net/tun and nftables are needed"
            raise Unsupported("ovs-vswitchd", detail=f"{needed}: {missing.detail}") from failure


_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_BPF_MAP_CREATE = 0
_BPF_MAP_TYPE_ARRAY = 2


def _bpf() -> None:
    machine = os.uname().machine
    if machine not in _BPF_SYSCALL:
        raise KernelError("probe", "bpf", errno.ENOSYS, f"no system call number known for {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(struct.pack("=IIII", _BPF_MAP_TYPE_ARRAY, 4, 4, 1), 72)
    descriptor = libc.syscall(_BPF_SYSCALL[machine], _BPF_MAP_CREATE, attributes, 72)
    if descriptor < 0:
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            raise Unsupported("bpf", detail=os.strerror(number))
        raise KernelError("probe", "bpf", number, os.strerror(number))
    os.close(descriptor)


def _cgroup2() -> None:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    if not any(fields[2] == "cgroup2" for fields in mounts):
        raise Unsupported("cgroup2", detail="no cgroup2 file system is mounted")


FEATURES: dict[str, Feature] = {
    "veth": Feature("2.6.24", _link("veth")),
    "bridge": Feature("2.2", _link("bridge")),
    "dummy": Feature("2.2", _link("dummy")),
    "vxlan": Feature("3.7", _link("vxlan", u32(1, 1))),
    "geneve": Feature("3.18", _link("geneve", u32(1, 1))),
    "ipip": Feature("2.2", _link("ipip")),
    "wireguard": Feature("5.6", _link("wireguard")),
    "wireguard-engine": Feature("", _wireguard_engine),
    "macvlan": Feature("2.6.23", _lower_link("macvlan")),
    "locked-vlan-port": Feature("5.18", _locked_port(Link("port", "vlan", attributes=Vlan(1)))),
    "locked-macvlan-port": Feature("5.18", _locked_port(Link("port", "macvlan", mode="private"))),
    "ipvlan": Feature("3.19", _lower_link("ipvlan")),
    "tun": Feature("2.4", _file("/dev/net/tun", "tun")),
    "ipv6": Feature("2.2", _file("/proc/sys/net/ipv6", "ipv6")),
    "br_netfilter": Feature("2.6", _file("/proc/sys/net/bridge/bridge-nf-call-iptables", "br_netfilter")),
    "nftables": Feature("3.13", _nftables),
    "nftables-ingress": Feature("5.10", _ingress),
    "nflog": Feature("3.14", _statement("nflog", LogStatement(prefix="probe", group=1))),
    "synproxy": Feature("5.3", _statement("synproxy", SynProxy())),
    "conntrack": Feature("2.6.18", _dump(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET)),
    "ip_vs": Feature("2.6.28", _generic("IPVS")),
    "openvswitch": Feature("3.3", _generic("ovs_datapath")),
    "ovs-vswitchd": Feature("", _open_vswitch),
    "bpf": Feature("3.18", _bpf),
    **{name: Feature(minimum, probe) for name, (minimum, probe) in bpf_state.PROBES.items()},
    "cgroup2": Feature("4.5", _cgroup2),
    "bird": Feature("", _executable("/usr/sbin/bird", "bird")),
}

_PACKAGES = {"bird": "bird2"}
"""The features that are programs of this machine, with the Debian package of each."""


class Features:
    """The answers of this kernel, each probed on first use; and of programs, which may be installed at any time."""

    def __init__(self) -> None:
        self._answers: dict[str, FeatureAnswer] = {}

    def probe(self, name: str) -> FeatureAnswer:
        """The answer for a name in ``FEATURES``.

        Raises: KeyError for another name.
        """
        if name not in self._answers or (not FEATURES[name].minimum and not self._answers[name]):
            self._answers[name] = _answer(name, FEATURES[name])
        return self._answers[name]

    def lacks(self, name: str) -> str:
        """The missing feature as text; empty when the kernel has the feature, or when the probe has no answer.

        For a feature without a minimum the text is the reason.

        Raises: KeyError for a name that is not in ``FEATURES``.
        """
        answer = self.probe(name)
        if answer.verdict != "no":
            return ""
        if name in _PACKAGES:
            return f"the program {name} is not installed (in Debian's package {_PACKAGES[name]})"
        return f"the kernel has no {name} (in Linux since {answer.minimum})" if answer.minimum else answer.reason

    def all(self) -> tuple[FeatureAnswer, ...]:
        """The answers of all probes."""
        return tuple(self.probe(name) for name in FEATURES)


def _answer(name: str, feature: Feature) -> FeatureAnswer:
    try:
        feature.probe()
    except Unsupported as failure:
        return FeatureAnswer(name, "no", failure.detail, feature.minimum)
    except KernelError as failure:
        return FeatureAnswer(name, "unknown", str(failure), feature.minimum)
    return FeatureAnswer(name, "yes", "", feature.minimum)
