"""kube-proxy: its mode and configuration, and what happens to them in a newer version. Pure.

| version | mode ipvs (KEP-5495) | mode unset (KEP-5343) | Service.spec.externalIPs (KEP-5707) |
|---|---|---|---|
| 1.35 | kube-proxy warns | iptables | |
| 1.36 | | | deprecated |
| 1.37 | feature gate KubeProxyIPVS, on | iptables, kube-proxy warns | |
| 1.40 | gate off: kube-proxy ends at its start | nftables | off by default |
| 1.43 | removed | | removed |

Mode nftables needs Linux 5.13. Its NodePorts answer on the primary addresses of the node, and not on 127.0.0.1 (an
alpha option of 1.37 changes that, KEP-6032).
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import yaml

from podwire.model.meta import Fact
from podwire.upgrade.inventory.inventory import SYSTEM, Inventory, containers_of
from podwire.upgrade.plan.values import PlannedChange, Severity, UpgradeFinding, text_digest
from podwire.upgrade.plan.versions import Version

CONFIGURATIONS: tuple[tuple[str, str], ...] = (("kube-proxy", "config.conf"), ("kube-proxy-config", "config"))
"""ConfigMaps of kube-system with a KubeProxyConfiguration, each with its key: of kubeadm, of EKS."""

IPVS_WARNED, IPVS_GATE, IPVS_OFF, IPVS_REMOVED = 35, 37, 40, 43
NFTABLES_DEFAULT, DEFAULT_WARNED = 40, 37
USERSPACE_REMOVED = 26
NFTABLES_KERNEL = (5, 13)

_MODE_LINE = re.compile(r"(?m)^mode:[ \t]*(?:\"\"|''|null|)[ \t]*$")
_NODE_ARGUMENTS = "k3s.io/node-args"
_KERNEL = re.compile(r"(\d+)\.(\d+)")

_ONLY_IPVS: Mapping[str, str] = {
    "scheduler": "schedulers other than random have no equal in other modes",
    "strictARP": "without the device kube-ipvs0 the setting is not needed",
    "excludeCIDRs": "the setting has no meaning in other modes",
    "tcpTimeout": "use conntrack.tcpEstablishedTimeout",
    "tcpFinTimeout": "use conntrack.tcpCloseWaitTimeout",
    "udpTimeout": "use conntrack.udpTimeout",
}
"""Fields of the section ``ipvs`` that matter only to ipvs, and what to do without them."""

_UNUSED: Mapping[str, tuple[int, str]] = {
    "portRange": (USERSPACE_REMOVED, "was for mode userspace and is ignored"),
    "udpIdleTimeout": (USERSPACE_REMOVED, "was for mode userspace; kube-proxy refuses unknown fields"),
    "resourceContainer": (USERSPACE_REMOVED, "is ignored"),
}
"""Fields that lost their meaning, with the minor version."""


class ProxyFile(Fact, frozen=True, kw_only=True):
    """The configuration of kube-proxy."""

    object: str = ""
    """As ``ConfigMap kube-system/kube-proxy``; empty: there is none."""
    name: str = ""
    key: str = ""
    text: str = ""
    fields: Mapping[str, Any] = {}
    flags: Mapping[str, str] = {}
    """Flags of the program, without dashes; the configuration file has priority over most of them."""
    findings: tuple[UpgradeFinding, ...] = ()

    @property
    def mode(self) -> str:
        """The mode as configured; empty: the default of the version."""
        return str(self.fields.get("mode") or "") or self.flags.get("proxy-mode", "")

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the configuration; empty when it is not there."""
        value = self.fields.get(name)
        return value if isinstance(value, dict) else {}


def read_configuration(inventory: Inventory) -> ProxyFile:
    """The configuration; a document that is no YAML is reported and has no fields."""
    flags = _flags(inventory)
    for name, key in CONFIGURATIONS:
        text = inventory.config_maps.get(f"{SYSTEM}/{name}", {}).get(key)
        if text is None:
            continue
        title = f"ConfigMap {SYSTEM}/{name}"
        try:
            document = yaml.load(text, Loader=yaml.CSafeLoader)
        except (yaml.YAMLError, RecursionError) as failure:
            line = str(failure).partition("\n")[0]
            finding = _finding("warning", title, f"data.{key}", f"is no YAML: {line}", "correct it")
            return ProxyFile(object=title, name=name, key=key, text=text, flags=flags, findings=(finding,))
        fields = document if isinstance(document, dict) else {}
        return ProxyFile(object=title, name=name, key=key, text=text, fields=fields, flags=flags)
    return ProxyFile(flags=flags)


def _flags(inventory: Inventory) -> dict[str, str]:
    daemonset = inventory.daemonset(SYSTEM, "kube-proxy")
    flags = {}
    for container, _ in containers_of(daemonset) if daemonset is not None else ():
        for argument in (*(container.get("command") or ()), *(container.get("args") or ())):
            name, equals, value = str(argument).partition("=")
            if name.startswith("--") and equals:
                flags[name[2:]] = value
    return flags or _flags_of_nodes(inventory)


def _flags_of_nodes(inventory: Inventory) -> dict[str, str]:
    """The flags that k3s gives to the kube-proxy in it, from the annotation with the arguments of k3s."""
    flags = {}
    for node in inventory.nodes:
        try:
            arguments = msgspec.json.decode(node.metadata.annotations.get(_NODE_ARGUMENTS, "[]"), type=tuple[str, ...])
        except msgspec.DecodeError:
            continue
        for name, value in pairwise(arguments):
            if name.lstrip("-") == "kube-proxy-arg":
                flag, _, setting = value.partition("=")
                flags[flag.lstrip("-")] = setting
    return flags


def mode_in(configuration: ProxyFile, minor: int) -> str:
    """The mode in force in Kubernetes 1.``minor``."""
    return configuration.mode or ("nftables" if minor >= NFTABLES_DEFAULT else "iptables")


def check_configuration(
    configuration: ProxyFile, inventory: Inventory, before: Version, target: Version
) -> tuple[UpgradeFinding, ...]:
    """What the target version changes for this configuration."""
    findings = [*configuration.findings]
    source = configuration.object or "kube-proxy"
    findings += _mode(configuration, source, before, target)
    if mode_in(configuration, target.minor) == "nftables" or configuration.mode == "ipvs":
        findings += _lacks_of_nftables(configuration, source, inventory, target)
    for field, (minor, text) in _UNUSED.items():
        if configuration.fields.get(field) and minor <= target.minor:
            findings.append(_finding("warning", source, field, f"{text} since 1.{minor}", "remove the field"))
    gates = sorted(configuration.section("featureGates"))
    if gates:
        message = f"sets {', '.join(gates)}; kube-proxy ends at its start when its version no longer has a gate"
        remedy = f"check these gates in the release notes of {target.minor_text}"
        findings.append(_finding("warning", source, "featureGates", message, remedy))
    return tuple(findings)


def _mode(configuration: ProxyFile, source: str, before: Version, target: Version) -> Iterator[UpgradeFinding]:
    mode = configuration.mode
    if mode == "userspace" and target.minor >= USERSPACE_REMOVED:
        text = f"the mode userspace was removed in 1.{USERSPACE_REMOVED}"
        yield _finding("blocker", source, "mode", text, "set mode to iptables or nftables")
    elif mode == "ipvs":
        yield _ipvs(configuration, source, target)
    elif not mode and target.minor >= NFTABLES_DEFAULT > before.minor:
        text = f"is not set, and the default becomes nftables in 1.{NFTABLES_DEFAULT}"
        remedy = "set mode to iptables first: the plan cannot, and the mode would change with the version"
        if pinned_mode(configuration, before, target) is not None:
            text = f"{text}; the plan sets iptables first"
            remedy = "change the mode in a step of its own, after the upgrade"
        yield _finding("warning", source, "mode", text, remedy)
    elif not mode and target.minor >= DEFAULT_WARNED and target.minor < NFTABLES_DEFAULT:
        text = f"is not set; the default becomes nftables in 1.{NFTABLES_DEFAULT}, and kube-proxy warns"
        yield _finding("info", source, "mode", text, "set mode to iptables or nftables")


def _ipvs(configuration: ProxyFile, source: str, target: Version) -> UpgradeFinding:
    gate = configuration.section("featureGates").get("KubeProxyIPVS") is True
    remedy = "move to nftables or iptables before the upgrade; podwire's own proxy also has the mode ipvs"
    if target.minor >= IPVS_REMOVED:
        return _finding("blocker", source, "mode", f"the mode ipvs was removed in 1.{IPVS_REMOVED}", remedy)
    if target.minor >= IPVS_OFF:
        text = f"the mode ipvs is off since 1.{IPVS_OFF} and removed in 1.{IPVS_REMOVED}"
        if gate:
            return _finding("warning", source, "mode", f"{text}; the gate KubeProxyIPVS keeps it", remedy)
        return _finding("blocker", source, "mode", f"{text}; kube-proxy would end at its start", remedy)
    text = f"the mode ipvs is deprecated, off in 1.{IPVS_OFF} and removed in 1.{IPVS_REMOVED}"
    severity: Severity = "warning" if target.minor >= IPVS_WARNED else "info"
    return _finding(severity, source, "mode", text, remedy)


def _lacks_of_nftables(
    configuration: ProxyFile, source: str, inventory: Inventory, target: Version
) -> Iterator[UpgradeFinding]:
    """What the cluster uses and the mode nftables lacks; for ipvs too, since nftables takes its place."""
    old = _old_kernels(inventory)
    if old:
        text = f"mode nftables needs Linux {NFTABLES_KERNEL[0]}.{NFTABLES_KERNEL[1]}; older: {', '.join(old[:3])}"
        yield _finding("warning", "Nodes", "status.nodeInfo.kernelVersion", text, "use iptables on these nodes")
    node_ports = sum(service.spec.type in ("NodePort", "LoadBalancer") for service in inventory.services)
    if node_ports and not configuration.fields.get("nodePortAddresses"):
        text = f"is empty, which in mode nftables means primary addresses only; {node_ports} Services have node ports"
        remedy = 'set nodePortAddresses to ["0.0.0.0/0", "::/0"] to keep the other addresses'
        yield _finding("warning", source, "nodePortAddresses", text, remedy)
    if node_ports and configuration.mode != "ipvs" and _localhost(configuration):
        text = f"node ports of {node_ports} Services answer on 127.0.0.1, and in mode nftables they do not"
        yield _finding("warning", source, "iptables.localhostNodePorts", text, "use another address of the node")
    for field, text in _ONLY_IPVS.items():
        value = configuration.section("ipvs").get(field)
        if configuration.mode == "ipvs" and value and value not in ("rr", "0s", "0"):
            yield _finding("warning", source, f"ipvs.{field}", f"{value!r} is of mode ipvs only; {text}", "")


def _localhost(configuration: ProxyFile) -> bool:
    """Whether node ports answer on 127.0.0.1 in mode iptables, which is the default."""
    return configuration.section("iptables").get("localhostNodePorts") is not False


def _old_kernels(inventory: Inventory) -> list[str]:
    old = []
    for node in inventory.nodes:
        match = _KERNEL.match(node.status.node_info.kernel_version)
        if match is not None and (int(match[1]), int(match[2])) < NFTABLES_KERNEL:
            old.append(f"{node.name} ({node.status.node_info.kernel_version})")
    return old


def pinned_mode(configuration: ProxyFile, before: Version, target: Version) -> PlannedChange | None:
    """The change that writes the old default ``iptables`` into the configuration, where the default would change.

    None when the mode is set, when the default stays, or when the file has no place for such a line.
    """
    if configuration.mode or not configuration.text or not target.minor >= NFTABLES_DEFAULT > before.minor:
        return None
    text, count = _MODE_LINE.subn("mode: iptables", configuration.text)
    if count == 0 and "mode" not in configuration.fields:
        text = configuration.text.rstrip("\n") + "\nmode: iptables\n"
    if _fields_of(text) != {**configuration.fields, "mode": "iptables"}:
        return None
    return PlannedChange(
        api_version="v1",
        kind="ConfigMap",
        namespace=SYSTEM,
        name=configuration.name,
        patch={"data": {configuration.key: text}},
        diff=unified_diff(configuration.text, text, configuration.key),
        digests={configuration.key: text_digest(configuration.text)},
    )


def _fields_of(text: str) -> Mapping[str, Any] | None:
    try:
        document = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def unified_diff(before: str, after: str, name: str) -> str:
    """A unified diff of two texts."""
    lines: Iterable[str] = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (before)", f"{name} (after)", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def _finding(severity: Severity, source: str, field: str, message: str, remedy: str) -> UpgradeFinding:
    return UpgradeFinding(severity=severity, object=source, field=field, message=message, remedy=remedy)
