"""The steps of an upgrade in their order, with patches, gates, waves and estimated times. Pure.

Order: networks of pods, then the API servers (by hand), kube-proxy after them, CoreDNS, the rest of podwire, kubelets
(by hand). Times are estimates from the constants below, not measurements.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from podwire.model.meta import Fact
from podwire.model.selector import LabelSelector
from podwire.upgrade.inventory.components import NETWORK_COMPONENTS, PARTS_OF_PODWIRE, Components
from podwire.upgrade.inventory.inventory import Inventory, InventoryPod
from podwire.upgrade.inventory.layout import ClusterLayout
from podwire.upgrade.plan.coredns import change_corefile, default_image
from podwire.upgrade.plan.kubeproxy import ProxyFile, pinned_mode
from podwire.upgrade.plan.networks import RISKS, UNKNOWN_RISK
from podwire.upgrade.plan.skew import Versions
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import (
    Action,
    Component,
    Gate,
    ImageChange,
    ImageReference,
    PlannedChange,
    UpgradeFinding,
    UpgradeStep,
    Wave,
)
from podwire.upgrade.plan.versions import Version, minors_between, parse_version
from podwire.upgrade.plan.waves import WaveNode, overfull, schedule

WAVE_S = 45
"""Seconds of a wave: the pods of its nodes end, start and become ready, and the gates hold."""
PAUSE_S = 30
"""Seconds after the canary."""
REPLICA_S = 25
"""Seconds of one replica of a Deployment: lameduck, end, start, readiness."""
API_SERVER_S, KUBELET_S = 180, 120

_NETWORK_GATES: tuple[Gate, ...] = ("rollout", "node-ready", "pods", "services", "dns", "flows")
_PROXY_GATES: tuple[Gate, ...] = ("api-servers", "rollout", "services", "dns", "flows")
_DNS_GATES: tuple[Gate, ...] = ("rollout", "dns", "flows")

_RISK: Mapping[str, str] = {
    "kube-proxy": "rules stay in the kernel while kube-proxy restarts; changes of endpoints wait meanwhile",
    "coredns": "queries go to the other replicas; a replica that ends still answers during its lameduck time",
    "podwire-controller": "no packets; addresses and slices are not written until the new controller leads",
    "podwire-dns": "queries go to the other replicas",
    "podwire-gateway": "the engine keeps its listeners and configuration while the gateway restarts",
}


class PlannedSteps(Fact, frozen=True, kw_only=True):
    """The steps and what was noticed while they were made."""

    steps: tuple[UpgradeStep, ...]
    findings: tuple[UpgradeFinding, ...]


class PlanSituation(Fact, frozen=True, kw_only=True):
    """What the steps depend on."""

    inventory: Inventory
    layout: ClusterLayout
    components: Components
    versions: Versions
    proxy: ProxyFile
    targets: Targets


def plan_steps(situation: PlanSituation) -> PlannedSteps:
    """All steps.

    Raises: ConfigError when the canary or the size of waves is wrong.
    """
    planner = _Planner(situation)
    for component in situation.components.components:
        if component.name in NETWORK_COMPONENTS:
            planner.add_images(component, _NETWORK_GATES, None)
    planner.add_api_servers()
    for component in situation.components.components:
        if component.name == "kube-proxy":
            planner.add_kube_proxy(component)
    for component in situation.components.components:
        if component.name == "coredns":
            planner.add_coredns(component)
    for component in situation.components.components:
        if component.name in PARTS_OF_PODWIRE[1:]:
            planner.add_images(component, _DNS_GATES, None)
    planner.add_kubelets()
    steps = tuple(planner.numbered())
    return PlannedSteps(steps=steps, findings=tuple(planner.findings))


class _Planner:
    def __init__(self, situation: PlanSituation) -> None:
        self._situation = situation
        self._targets = situation.targets
        self._steps: list[UpgradeStep] = []
        self._waves: dict[tuple[str, ...], tuple[Wave, ...]] = {}
        self.findings: list[UpgradeFinding] = []

    def numbered(self) -> Iterator[UpgradeStep]:
        for number, step in enumerate(self._steps, start=1):
            yield replace(step, id=f"{number}-{step.component}")

    def add_images(
        self,
        component: Component,
        gates: tuple[Gate, ...],
        default: ImageReference | None,
        before: Sequence[PlannedChange] = (),
        after: Sequence[PlannedChange] = (),
    ) -> None:
        """A step that changes images of a workload, with other objects before or after it."""
        changes = tuple(self._image_changes(component, default))
        if not changes and not before and not after:
            if component.name in NETWORK_COMPONENTS and component.owner == "cluster":
                self.findings.append(_stays(component))
            return
        if component.owner != "cluster" or component.kind not in ("DaemonSet", "Deployment"):
            self._steps.append(self._by_owner(component, gates))
            return
        nodes = component.kind == "DaemonSet"
        waves = self._scheduled(component) if nodes else ()
        workload = (_patch(component, changes),) if changes else ()
        action: Action = "images" if changes else "corefile"
        self._steps.append(
            UpgradeStep(
                id="",
                component=component.name,
                action=action,
                scope="nodes" if nodes else "whole",
                images=changes,
                changes=(*before, *workload, *after),
                gates=gates,
                waves=waves,
                seconds=len(waves) * WAVE_S + PAUSE_S if nodes else max(1, component.replicas) * REPLICA_S,
                risk=self._risk(component),
            )
        )

    def add_api_servers(self) -> None:
        target, versions = self._targets.version, self._situation.versions
        behind = [name for name, version in versions.api_servers if minors_between(version, target) > 0]
        if not behind:
            return
        patch = target.patch if target.patch >= 0 else 0
        texts = {"version": f"{target.minor_text}.{patch}", "minor": target.minor_text}
        self._steps.append(
            UpgradeStep(
                id="",
                component="kube-apiserver",
                action="manual",
                gates=("api-servers",),
                seconds=len(versions.api_servers) * API_SERVER_S,
                risk="the API is away for a moment on each server; the data path of nodes does not depend on it",
                command=self._situation.layout.upgrade.format(**texts),
            )
        )

    def add_kube_proxy(self, component: Component) -> None:
        target, oldest = self._targets.version, self._situation.versions.oldest
        pinned = pinned_mode(self._situation.proxy, oldest, target)
        default = None
        if component.images:
            default = self._kube_proxy_image(component, target, oldest)
        self.add_images(component, _PROXY_GATES, default, before=() if pinned is None else (pinned,))

    def _kube_proxy_image(self, component: Component, target: Version, oldest: Version) -> ImageReference | None:
        image = component.images[0].image
        current = parse_version(image.tag)
        version = target
        if target.patch < 0 and minors_between(oldest, target) == 0:
            version = oldest
        elif target.patch < 0 and component.owner == "cluster" and not self._targets.names("kube-proxy"):
            message = f"the patch release of {target.minor_text} is not known; v{target.minor_text}.0 is used"
            remedy = f"plan again with --to {target.minor_text}.N, the patch release of the API servers"
            self.findings.append(
                UpgradeFinding(severity="info", object=component.title, message=message, remedy=remedy)
            )
        if current is None or (current.addition and component.owner == "cluster"):
            message = f"the tag of {image} is a custom build; the plan leaves the image as it is"
            remedy = "name the new one by --image kube-proxy=IMAGE"
            self.findings.append(
                UpgradeFinding(severity="warning", object=component.title, message=message, remedy=remedy)
            )
            return None
        if current.release >= version.release:
            return None
        return image.with_tag(f"v{version.minor_text}.{max(version.patch, 0)}")

    def add_coredns(self, component: Component) -> None:
        target = self._targets.version
        default, findings = default_image(component, target)
        if not self._targets.names("coredns"):
            self.findings += findings
        if not component.images:
            return
        before = component.images[0].image.tag
        new = self._targets.image("coredns", component.images[0].container, default)
        after = new.tag if new is not None else before
        change = change_corefile(self._situation.inventory, before, after, self._targets)
        self.findings += change.findings
        if component.owner != "cluster":
            self.add_images(component, _DNS_GATES, default)
            return
        first = change.changes if change.before_pods else ()
        last = () if change.before_pods else change.changes
        self.add_images(component, _DNS_GATES, default, before=first, after=last)

    def add_kubelets(self) -> None:
        target, versions = self._targets.version, self._situation.versions
        behind = [node for node, version in versions.kubelets.items() if minors_between(version, target) > 0]
        if not behind or self._situation.layout.name in ("podwire",):
            return
        managed = self._situation.layout.owner == "cloud"
        command = "upgrade the node pools by the cloud's command" if managed else "upgrade kubelet on each drained node"
        self._steps.append(
            UpgradeStep(
                id="",
                component="kubelet",
                action="manual",
                gates=("node-ready", "flows"),
                seconds=len(behind) * KUBELET_S,
                risk="pods of a drained node start on other nodes; PodDisruptionBudgets limit how many at once",
                command=command,
            )
        )

    def _image_changes(self, component: Component, default: ImageReference | None) -> Iterator[ImageChange]:
        tag = self._chosen_tag(component)
        for number, item in enumerate(component.images):
            fallback = default if number == 0 else None
            if tag and number > 0 and item.image.tag == component.images[0].image.tag:
                fallback = item.image.with_tag(tag)
            key = component.name if number == 0 else f"{component.name}/{item.container}"
            after = self._targets.image(key, item.container, fallback)
            if after is not None and after != item.image:
                yield ImageChange(container=item.container, before=item.image, after=after, init=item.init)

    def _chosen_tag(self, component: Component) -> str:
        """The tag that the user chose for the main container; init containers of the same image follow it."""
        image = self._targets.chosen(component.name)
        return image.tag if image is not None else ""

    def _by_owner(self, component: Component, gates: tuple[Gate, ...]) -> UpgradeStep:
        layout = self._situation.layout
        texts = {"version": str(self._targets.version), "minor": self._targets.version.minor_text}
        if component.owner == "operator":
            command = f"change the image by {component.owned_by}, whose controller makes {component.title}"
        elif component.owner == "cloud":
            command = _CLOUD_COMMANDS.get(layout.name, "use the cloud's own command").format(
                name="coredns" if component.name == "coredns" else component.name, **texts
            )
        else:
            command = (
                f"{component.title} comes with the server of {layout.name}: it changes when the server is upgraded"
            )
        return UpgradeStep(
            id="",
            component=component.name,
            action="manual",
            gates=gates,
            risk=self._risk(component),
            command=command,
        )

    def _risk(self, component: Component) -> str:
        network = NETWORK_COMPONENTS.get(component.name)
        return RISKS.get(network, UNKNOWN_RISK) if network else _RISK.get(component.name, "")

    def _scheduled(self, component: Component) -> tuple[Wave, ...]:
        names = nodes_of(component, self._situation.inventory)
        if names not in self._waves:
            nodes, allowed = wave_nodes(self._situation.inventory, names)
            self._waves[names] = schedule(nodes, allowed, self._targets.waves)
            self.findings += overfull(nodes, allowed)
        return self._waves[names]


_CLOUD_COMMANDS: Mapping[str, str] = {
    "eks": "aws eks update-addon --cluster-name CLUSTER --addon-name {name} --resolve-conflicts PRESERVE",
    "gke": "GKE upgrades it with the control plane and the node pools",
    "aks": "AKS upgrades it with the control plane",
}


def _stays(component: Component) -> UpgradeFinding:
    return UpgradeFinding(
        severity="info",
        object=component.title,
        field="image",
        message=f"stays at {component.version or component.images[0].image if component.images else 'its image'}",
        remedy=f"name a new one by --image {component.name}=IMAGE",
    )


def _patch(component: Component, changes: Iterable[ImageChange]) -> PlannedChange:
    pod: dict[str, list[dict[str, str]]] = {}
    for change in changes:
        entry = {"name": change.container, "image": str(change.after)}
        pod.setdefault("initContainers" if change.init else "containers", []).append(entry)
    return PlannedChange(
        api_version="apps/v1",
        kind=component.kind,
        namespace=component.namespace,
        name=component.workload,
        patch={"spec": {"template": {"spec": pod}}},
    )


def pods_of(component: Component, inventory: Inventory) -> tuple[InventoryPod, ...]:
    """The pods of a DaemonSet on nodes that are there."""
    present = {node.name for node in inventory.nodes}
    return tuple(
        pod
        for pod in inventory.pods
        if pod.metadata.namespace == component.namespace
        and pod.spec.node_name in present
        and any(o.kind == "DaemonSet" and o.name == component.workload for o in pod.metadata.owner_references)
    )


def nodes_of(component: Component, inventory: Inventory) -> tuple[str, ...]:
    """The nodes on which a DaemonSet runs: those of its pods, else all Linux nodes."""
    names = {pod.spec.node_name for pod in pods_of(component, inventory)}
    present = [node.name for node in inventory.nodes if node.status.node_info.operating_system in ("", "linux")]
    return tuple(name for name in present if name in names) or tuple(present)


def wave_nodes(inventory: Inventory, names: Iterable[str]) -> tuple[tuple[WaveNode, ...], dict[str, int]]:
    """The nodes with their pods of budgets, and by budget how many pods may be disrupted."""
    counts: dict[str, dict[str, int]] = {}
    allowed = {}
    index = _PodIndex(inventory)
    for budget in inventory.budgets:
        if budget.spec.selector is None:
            continue
        key = f"{budget.metadata.namespace}/{budget.metadata.name}"
        allowed[key] = budget.status.disruptions_allowed
        for labels, node in index.candidates(budget.metadata.namespace, budget.spec.selector):
            if budget.spec.selector.matches(labels):
                of_node = counts.setdefault(node, {})
                of_node[key] = of_node.get(key, 0) + 1
    chosen = set(names)
    nodes = tuple(
        WaveNode(
            name=node.name,
            zone=node.zone,
            ready=node.ready,
            control_plane=node.control_plane,
            pods=counts.get(node.name, {}),
        )
        for node in inventory.nodes
        if node.name in chosen
    )
    return nodes, allowed


class _PodIndex:
    """The running pods by namespace and by label, so that a budget looks only at pods with its first label."""

    def __init__(self, inventory: Inventory) -> None:
        self._of_namespace: dict[str, list[tuple[dict[str, str], str]]] = {}
        self._of_label: dict[tuple[str, str, str], list[tuple[dict[str, str], str]]] = {}
        for pod in inventory.pods:
            if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
                continue
            meta = pod.metadata
            entry = (meta.labels, pod.spec.node_name)
            self._of_namespace.setdefault(meta.namespace, []).append(entry)
            for name, value in meta.labels.items():
                self._of_label.setdefault((meta.namespace, name, value), []).append(entry)

    def candidates(self, namespace: str, selector: LabelSelector) -> list[tuple[dict[str, str], str]]:
        """Pods among which are all that the selector matches, each with its labels and its node."""
        lists = [self._of_label.get((namespace, *pair), []) for pair in selector.match_labels.items()]
        return min(lists, key=len) if lists else self._of_namespace.get(namespace, [])
