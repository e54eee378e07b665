"""What would go wrong if podwire began on a node, from the facts of the node and the agent's configuration. Pure.

Each check is a function of :class:`PreflightFacts`; :func:`find` runs all. A ``fault`` stops the network of pods or
of the node, a ``warning`` changes how something works, a ``note`` is worth knowing. Each finding says what to do.
"""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Literal

import msgspec

Network = IPv4Network | IPv6Network
Level = Literal["fault", "warning", "note"]

OTHER_PLUGINS: Mapping[str, str] = {
    "flannel.": "Flannel", "cni0": "Flannel or another bridge plugin", "vxlan.calico": "Calico", "cali": "Calico",
    "tunl0": "Calico", "cilium_": "Cilium", "lxc": "Cilium", "weave": "Weave", "antrea-gw0": "Antrea",
    "kube-bridge": "kube-router", "ovn-k8s-mp0": "OVN-Kubernetes",
}  # fmt: skip
"""The beginnings of names of devices by the plugin that makes them."""

SMALLEST_MTU = 1280
"""Bytes that every path carries (RFC 8200)."""


class PreflightFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a node and its agent's configuration."""

    parts: tuple[str, ...]
    backend: str
    lacks: Mapping[str, str] = {}
    """What a setting needs and the node lacks, by the setting: ``routing.backend vxlan``."""
    conf_dir: str = ""
    conflists: tuple[str, ...] = ()
    """Names of the network configurations in ``conf_dir``; the runtime takes the first by name."""
    runtimes: tuple[str, ...] = ()
    """Sockets of container runtimes on the node."""
    devices: tuple[str, ...] = ()
    kube_proxy: str = ""
    """Where rules of kube-proxy are: ``nftables``, ``iptables``; empty: nowhere."""
    cluster_cidrs: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    """Destinations of the node's routes that are no default routes, each with its device."""
    mtu: int = 0
    """Bytes of the node's uplink; 0: not known."""
    overhead: int = 0
    """Bytes that the backend adds to a packet between nodes."""
    ports: Mapping[str, str] = {}
    """Ports that the agent needs and another program has: ``udp 8472`` and what needs it."""
    forward_drops: tuple[str, ...] = ()
    """Firewalls that drop forwarded packets of pods, each with what to do."""
    forward_opened: tuple[str, ...] = ()
    """Chains of iptables that refuse forwarded packets, in which the agent writes rules: ``FORWARD (nft, ip)``."""
    input_drops: tuple[str, ...] = ()
    """Firewalls that drop packets to ports of the node that are needed, each with what to do."""


class PreflightFinding(msgspec.Struct, frozen=True):
    """One finding; ``subject`` is the setting, file or device that it is about."""

    level: Level
    subject: str
    text: str
    action: str

    def __str__(self) -> str:
        return f"{self.level}: {self.subject}: {self.text}; {self.action}"


def find(facts: PreflightFacts) -> tuple[PreflightFinding, ...]:
    """All findings, the most serious first."""
    order = ("fault", "warning", "note")
    found_by_checks = [finding for check in CHECKS for finding in check(facts)]
    return tuple(sorted(found_by_checks, key=lambda finding: order.index(finding.level)))


def _features(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for setting, missing in facts.lacks.items():
        yield PreflightFinding("fault", setting, missing, "choose another one, or install what is missing")


def _runtime(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if "cni" not in facts.parts:
        return
    if not facts.conf_dir:
        text = "nothing is installed for the container runtime"
        yield PreflightFinding("fault", "cni.confDir", text, "set it to the runtime's directory, /etc/cni/net.d")
    if not facts.runtimes:
        text = "no socket of containerd or CRI-O"
        yield PreflightFinding("warning", "container runtime", text, "start it before pods are scheduled here")


def _other_configurations(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    own = "10-podwire.conflist"
    before = [name for name in facts.conflists if name < own]
    if "cni" in facts.parts and before:
        text = f"the runtime would use {before[0]}, whose name comes before {own}"
        yield PreflightFinding("fault", facts.conf_dir, text, f"move {before[0]} away when its pods have ended")


def _other_plugins(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if "cni" not in facts.parts:
        return
    for prefix, plugin in OTHER_PLUGINS.items():
        devices = [name for name in facts.devices if name.startswith(prefix)]
        if devices:
            text = f"a device of {plugin}"
            action = "drain the node and remove the other plugin first"
            yield PreflightFinding("warning", devices[0], text, action)


def _kube_proxy(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if "proxy" in facts.parts and facts.kube_proxy:
        text = f"kube-proxy has rules in {facts.kube_proxy}, and two proxies translate a packet twice"
        yield PreflightFinding("fault", "parts", text, "stop kube-proxy first, or leave `proxy` out")
    if "proxy" not in facts.parts and not facts.kube_proxy:
        text = "no rules of kube-proxy, and without `proxy` pods reach no Service"
        yield PreflightFinding("warning", "parts", text, "add `proxy`, or start another proxy")


def _networks(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    named = [(f"clusterCIDRs {text}", ip_network(text)) for text in facts.cluster_cidrs]
    named += [(f"serviceCIDRs {text}", ip_network(text)) for text in facts.service_cidrs]
    for number, (name, network) in enumerate(named):
        for other, further in named[number + 1 :]:
            if _overlap(network, further):
                action = "choose networks that do not overlap"
                yield PreflightFinding("fault", name, f"overlaps {other}", action)
        for text, device in facts.routes:
            if _overlap(network, ip_network(text)):
                reason = f"overlaps the route to {text} by {device}"
                yield PreflightFinding("fault", name, reason, "choose another network, or remove the route")


def _overlap(one_network: Network, other: Network) -> bool:
    return one_network.version == other.version and one_network.overlaps(other)


def _mtu(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if not facts.mtu or "routing" not in facts.parts:
        return
    pods = facts.mtu - facts.overhead
    if pods < SMALLEST_MTU:
        text = f"pods would get {pods} bytes: {facts.mtu} of the uplink without {facts.overhead} of {facts.backend}"
        yield PreflightFinding("fault", "MTU", text, "raise the MTU of the uplink, or use a backend without a tunnel")
    elif facts.overhead:
        text = f"pods get {pods} bytes: {facts.mtu} of the uplink without {facts.overhead} of {facts.backend}"
        yield PreflightFinding("note", "MTU", text, "nothing is to be done")


def _ports(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for port, needed_by in facts.ports.items():
        text = f"another program has it, and {needed_by} needs it"
        yield PreflightFinding("fault", port, text, "end the other program, or set another port")


def _firewalls(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for text in facts.forward_drops if {"cni", "routing"} & set(facts.parts) else ():
        yield PreflightFinding("warning", "firewall", *_with_advice(text))
    for text in facts.input_drops:
        yield PreflightFinding("warning", "firewall", *_with_advice(text))
    for chain in facts.forward_opened if "routing" in facts.parts else ():
        text = f"iptables' chain {chain} refuses forwarded packets that it does not know"
        yield PreflightFinding("note", "firewall", text, "the agent adds rules that accept those of pods")


def _with_advice(text: str) -> tuple[str, str]:
    """A text about a firewall in two: what it does, and what is to be done."""
    effect, _, action = text.partition(": ")
    return effect, action


CHECKS: tuple[Callable[[PreflightFacts], Iterator[PreflightFinding]], ...] = (
    _features, _runtime, _other_configurations, _other_plugins, _kube_proxy, _networks, _mtu, _ports, _firewalls,
)  # fmt: skip
