"""The checks before an upgrade, beyond those of the plan, from the objects of the API. Pure.

Each check is a function of :class:`PreflightSituation`; :func:`preflight` runs all and adds the findings of the plan.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from podwire.model.meta import Fact, is_true
from podwire.upgrade.inventory.components import NETWORK_COMPONENTS
from podwire.upgrade.inventory.inventory import Inventory, InventoryNode
from podwire.upgrade.plan.compose import sorted_findings
from podwire.upgrade.plan.kubeproxy import mode_in, read_configuration
from podwire.upgrade.plan.steps import pods_of
from podwire.upgrade.plan.values import Component, Severity, UpgradeFinding, UpgradePlan
from podwire.upgrade.plan.versions import parse_version

CONFIGURATIONS: Mapping[str, str] = {
    "multus": "00-multus.conf", "cilium": "05-cilium.conflist", "antrea": "10-antrea.conflist",
    "aws-node": "10-aws.conflist", "azure-cni": "10-azure.conflist", "calico": "10-calico.conflist",
    "canal": "10-canal.conflist", "flannel": "10-flannel.conflist", "kindnet": "10-kindnet.conflist",
    "kube-router": "10-kuberouter.conflist", "ovn-kubernetes": "10-ovn-kubernetes.conf",
    "podwire": "10-podwire.conflist", "weave": "10-weave.conflist",
}  # fmt: skip
"""The file of each network in /etc/cni/net.d; the container runtime takes the first by name."""

_MODULES_OF_MODES: Mapping[str, tuple[str, ...]] = {
    "iptables": ("nf_conntrack", "xt_comment", "xt_conntrack", "xt_mark"),
    "ipvs": ("ip_set", "ip_vs", "ip_vs_rr", "nf_conntrack", "xt_set"),
    "nftables": (
        "nf_conntrack",
        "nf_tables",
        "nft_chain_nat",
        "nft_ct",
        "nft_fib",
        "nft_masq",
        "nft_nat",
        "nft_numgen",
    ),
}
"""What the kernel needs for a mode of kube-proxy (``pkg/proxy/{iptables,ipvs,nftables}``)."""
MODULES = frozenset(name for names in _MODULES_OF_MODES.values() for name in names)
"""The modules that are looked for."""
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_LISTED = 3
_CONTAINERD_2_SINCE = 36
"""The first minor version of Kubernetes that does not support containerd 1.x."""


class PreflightSituation(Fact, frozen=True, kw_only=True):
    """The cluster and the plan."""

    inventory: Inventory
    plan: UpgradePlan
    configurations: Mapping[str, tuple[str, ...]] = {}
    """By node the files of /etc/cni/net.d in their order, where they were read."""
    modules: Mapping[str, frozenset[str]] = {}
    """By node those of :data:`MODULES` that its kernel has, where they are known."""

    @property
    def daemonsets(self) -> tuple[Component, ...]:
        """The components that are upgraded node by node."""
        names = {step.component for step in self.plan.steps if step.scope == "nodes"}
        return tuple(c for c in self.plan.components if c.kind == "DaemonSet" and c.name in names)


def preflight(situation: PreflightSituation) -> tuple[UpgradeFinding, ...]:
    """The findings of the plan and of all checks, the most serious first."""
    results = [finding for check in CHECKS for finding in check(situation)]
    return sorted_findings([*situation.plan.findings, *results])


def _nodes_ready(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    unready = [node for node in situation.inventory.nodes if not node.ready]
    if unready:
        message = f"{_names(unready)} not Ready: the gates of their waves cannot hold"
        yield _finding("blocker", "Nodes", "status.conditions[Ready]", message, "repair or remove these nodes first")
    for kind in _PRESSURE:
        nodes = [node for node in situation.inventory.nodes if _has(node, kind)]
        if nodes:
            message = f"{_names(nodes)} in trouble; a new pod may be evicted or have no network"
            yield _finding("warning", "Nodes", f"status.conditions[{kind}]", message, "find out why first")


def _has(node: InventoryNode, kind: str) -> bool:
    return is_true(node.status.conditions, kind)


def _cordoned(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    nodes = [node for node in situation.inventory.nodes if node.spec.unschedulable]
    if nodes:
        message = f"{_names(nodes)} cordoned; DaemonSets are upgraded there too, tests of pods are not run there"
        yield _finding("info", "Nodes", "spec.unschedulable", message, "uncordon them when their work is done")


def _runtimes(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    target = parse_version(situation.plan.to_version)
    old = []
    for node in situation.inventory.nodes:
        name, _, text = node.status.node_info.container_runtime_version.partition("://")
        version = parse_version(text)
        if name == "containerd" and version is not None and version.major < 2:
            old.append(node)
    if old and target is not None and target.minor >= _CONTAINERD_2_SINCE:
        message = f"Kubernetes 1.{_CONTAINERD_2_SINCE} no longer supports containerd before 2.0: {_listed(_of(old))}"
        remedy = "upgrade containerd before the kubelets"
        yield _finding("warning", "Nodes", "status.nodeInfo.containerRuntimeVersion", message, remedy)


def _pods_everywhere(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    for component in situation.daemonsets:
        pods = pods_of(component, situation.inventory)
        broken = sorted(pod.spec.node_name for pod in pods if not pod.ready)
        if broken:
            message = f"its pods on {_listed(broken)} are not ready"
            yield _finding("blocker", component.title, "status", message, "repair them first: the gates wait for them")


def _mixed_images(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    """DaemonSets in the middle of another rollout."""
    for component in situation.daemonsets:
        images: dict[str, list[str]] = defaultdict(list)
        for pod in pods_of(component, situation.inventory):
            if pod.spec.containers:
                images[pod.spec.containers[0].image].append(pod.spec.node_name)
        if len(images) > 1:
            texts = ", ".join(f"{image} on {_listed(nodes)}" for image, nodes in sorted(images.items()))
            message = f"its pods have different images: {texts}"
            yield _finding("warning", component.title, "", message, "let the earlier rollout end first")


def _pod_ranges(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    nodes = situation.inventory.nodes
    with_range = [node for node in nodes if node.spec.cidrs]
    if with_range and len(with_range) < len(nodes):
        without = [node for node in nodes if not node.spec.cidrs]
        message = f"{_names(without)} without a pod range, while the other nodes have one"
        remedy = "look for free ranges: the cluster's pod network may be used up"
        yield _finding("warning", "Nodes", "spec.podCIDRs", message, remedy)
    counted = Counter(text for node in nodes for text in node.spec.cidrs)
    for text, count in sorted(counted.items()):
        if count > 1:
            message = f"{count} nodes have the pod range {text}"
            yield _finding("blocker", "Nodes", "spec.podCIDRs", message, "each node needs a range of its own")


def _storage_versions(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    for kind in situation.inventory.custom_kinds:
        title = f"CustomResourceDefinition {kind.name}"
        gone = [version for version in kind.stored_versions if version not in kind.served]
        if gone:
            message = f"objects are stored as {', '.join(gone)}, which is no longer served"
            remedy = "write every object again, then remove the version from status.storedVersions"
            yield _finding("blocker", title, "status.storedVersions", message, remedy)
        elif any(version != kind.storage for version in kind.stored_versions):
            old = ", ".join(version for version in kind.stored_versions if version != kind.storage)
            message = f"objects may still be stored as {old}; a new definition without that version is refused"
            remedy = f"write every object again in {kind.storage}, then remove {old} from status.storedVersions"
            yield _finding("warning", title, "status.storedVersions", message, remedy)


def _configurations(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    """The order of files in /etc/cni/net.d: as they were read, else as the networks write them."""
    networks = _networks(situation)
    own = {CONFIGURATIONS[name]: name for name in networks if name in CONFIGURATIONS}
    wrong: dict[str, list[str]] = defaultdict(list)
    for node, files in situation.configurations.items():
        if not files:
            yield _finding("blocker", f"Node {node}", "/etc/cni/net.d", "has no configuration of a network", "")
        elif own and files[0] not in own:
            wrong[files[0]].append(node)
    for file, nodes in sorted(wrong.items()):
        message = f"the runtime takes {file} first on {_listed(nodes)}, which is not of {', '.join(networks)}"
        remedy = "remove the file when no pod uses it, or the upgrade changes a network that pods do not have"
        yield _finding("warning", "Nodes", "/etc/cni/net.d", message, remedy)
    if len(own) > 1 and not situation.configurations:
        names = sorted(own)
        message = f"{' and '.join(own[file] for file in names)} write configurations; the runtime takes {names[0]}"
        remedy = "make sure that this is the network that pods should have"
        yield _finding("warning", "Nodes", "/etc/cni/net.d", message, remedy)


def _modules(situation: PreflightSituation) -> Iterator[UpgradeFinding]:
    """Modules that the mode of kube-proxy after the upgrade needs, and that nodes lack."""
    target = parse_version(situation.plan.to_version)
    if target is None or not any(component.name == "kube-proxy" for component in situation.plan.components):
        return
    mode = mode_in(read_configuration(situation.inventory), target.minor)
    for module in _MODULES_OF_MODES.get(mode, ()):
        lacking = [node for node, modules in situation.modules.items() if module not in modules]
        if lacking:
            message = f"mode {mode} of kube-proxy needs the kernel module {module}, which {_listed(lacking)} lacks"
            remedy = "install the package with the modules of the kernel, or choose another mode"
            yield _finding("warning", "Nodes", "/lib/modules", message, remedy)


def _networks(situation: PreflightSituation) -> tuple[str, ...]:
    names = (NETWORK_COMPONENTS.get(component.name) for component in situation.plan.components)
    return tuple(dict.fromkeys(name for name in names if name))


def _finding(severity: Severity, source: str, field: str, message: str, remedy: str) -> UpgradeFinding:
    return UpgradeFinding(severity=severity, object=source, field=field, message=message, remedy=remedy)


def _names(nodes: list[InventoryNode]) -> str:
    verb = "is" if len(nodes) == 1 else "are"
    return f"{_listed(_of(nodes))} {verb}"


def _of(nodes: list[InventoryNode]) -> list[str]:
    return [node.name for node in nodes]


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    noun = "node" if len(names) == 1 else "nodes"
    return f"{noun} {', '.join(sorted(names)[:_LISTED])}" + (f" and {more} more" if more > 0 else "")


CHECKS: tuple[Callable[[PreflightSituation], Iterator[UpgradeFinding]], ...] = (
    _nodes_ready, _cordoned, _runtimes, _pods_everywhere, _mixed_images, _pod_ranges, _storage_versions,
    _configurations, _modules,
)  # fmt: skip
