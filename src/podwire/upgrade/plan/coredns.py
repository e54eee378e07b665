"""CoreDNS: the version for a version of Kubernetes, the checks of its Deployment, and the migrated Corefile. Pure.

An upgrade keeps replicas, resources, affinity, tolerations, the autoscaler and the user's own lines of the Corefile: it
patches the image, and the lines of the Corefile that the new release refuses.

The ConfigMap and the pods change at different moments, and a pod of either version may start in between or reload the
file. So the order is chosen by what both releases accept: the file first if the old release accepts the new file, else
the pods first if the new release accepts the old file, else the change is exclusive: new pods read a copy.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.model.selector import LabelSelector
from podwire.upgrade.corefile.migrate import CorefileJob, CorefileMigration, migrate, refused_lines
from podwire.upgrade.inventory.inventory import SYSTEM, Inventory, Json, containers_of, template_of
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import (
    Component,
    ImageReference,
    PlannedChange,
    Severity,
    UpgradeFinding,
    text_digest,
)
from podwire.upgrade.plan.versions import Version, coredns_for, parse_version

MAIN, CUSTOM = "coredns", "coredns-custom"
_LAMEDUCK_S = 5
_GRACE_S = 30
"""Kubernetes' default of terminationGracePeriodSeconds."""


class CorefileChange(Fact, frozen=True, kw_only=True):
    """The changed ConfigMaps, and whether they change before the pods."""

    changes: tuple[PlannedChange, ...] = ()
    findings: tuple[UpgradeFinding, ...] = ()
    before_pods: bool = True


def default_image(component: Component, target: Version) -> tuple[ImageReference | None, tuple[UpgradeFinding, ...]]:
    """The image for a version of Kubernetes; None where the image stays, with the reason."""
    if not component.images:
        return None, ()
    image = component.images[0].image
    release, known = coredns_for(target.minor)
    findings = []
    if not known:
        message = f"the version of CoreDNS for Kubernetes {target.minor_text} is not in the table; {release} is used"
        findings.append(_finding("info", component.title, "image", message, "choose another by --image coredns=IMAGE"))
    current = parse_version(image.tag)
    if current is None or (current.addition and component.owner == "cluster"):
        message = f"the tag of {image} is a custom build; the plan leaves the image as it is"
        findings.append(
            _finding("warning", component.title, "image", message, "name the new one by --image coredns=IMAGE")
        )
        return None, tuple(findings)
    new = parse_version(release)
    assert new is not None
    if new.release <= current.release:
        message = f"CoreDNS {current} is not older than {release}, the version for Kubernetes {target.minor_text}"
        findings.append(_finding("info", component.title, "image", message, "the image stays"))
        return None, tuple(findings)
    prefix = "v" if image.tag.startswith("v") else ""
    return image.with_tag(f"{prefix}{release}"), tuple(findings)


def change_corefile(inventory: Inventory, before: str, after: str, targets: Targets) -> CorefileChange:
    """The changes of the ConfigMaps between two versions of CoreDNS."""
    changes: list[PlannedChange] = []
    findings: list[UpgradeFinding] = []
    migrations: list[tuple[str, str, CorefileMigration]] = []
    for name in (MAIN, CUSTOM):
        data = inventory.config_maps.get(f"{SYSTEM}/{name}", {})
        patch: dict[str, str] = {}
        diffs = []
        for key, text in sorted(data.items()):
            if not _is_corefile(name, key):
                continue
            migration = migrate(text, _job(name, key, before, after, targets))
            findings += migration.findings
            if migration.changed:
                migrations.append((key, text, migration))
                patch[key] = migration.text
                diffs.append(migration.diff)
        if patch:
            changes.append(
                PlannedChange(
                    api_version="v1",
                    kind="ConfigMap",
                    namespace=SYSTEM,
                    name=name,
                    patch={"data": patch},
                    diff="".join(diffs),
                    digests={key: text_digest(data[key]) for key in patch},
                )
            )
    first, exclusive = _order(migrations, before, after)
    if exclusive:
        changes = [replace(change, exclusive=True) for change in changes]
        findings.append(_two_files(before, after, exclusive))
    return CorefileChange(changes=tuple(changes), findings=_once(findings), before_pods=first)


def _is_corefile(name: str, key: str) -> bool:
    """Whether a key has a Corefile; other keys of ``coredns`` are files such as k3s' NodeHosts."""
    return key == "Corefile" if name == MAIN else key.endswith((".server", ".override"))


def _job(name: str, key: str, before: str, after: str, targets: Targets) -> CorefileJob:
    return CorefileJob(
        object=f"ConfigMap {SYSTEM}/{name}",
        key=key,
        from_version=before,
        to_version=after,
        defaults=targets.new_defaults,
        fragment=key.endswith(".override"),
    )


def _once(findings: list[UpgradeFinding]) -> tuple[UpgradeFinding, ...]:
    """Without repetitions: each key of a ConfigMap reports a version that is not known."""
    return tuple({(f.object, f.field, f.message): f for f in findings}.values())


def _order(migrations: list[tuple[str, str, CorefileMigration]], before: str, after: str) -> tuple[bool, str]:
    """Whether the file changes before the pods, and the line that makes neither order safe (empty: one is)."""
    new_refused = [line for key, _, m in migrations for line in refused_lines(m.text, before, key)]
    if not new_refused:
        return True, ""
    try:
        old_refused = [line for key, text, _ in migrations for line in refused_lines(text, after, key)]
    except ConfigError:
        old_refused = [""]
    return bool(old_refused), new_refused[0] if old_refused else ""


def _two_files(before: str, after: str, line: str) -> UpgradeFinding:
    message = f"CoreDNS {before} refuses the new file ({line}), and {after} the old one"
    remedy = "the new pods read a copy of the new file until all pods are new"
    return _finding("info", f"ConfigMap {SYSTEM}/{MAIN}", "data.Corefile", message, remedy)


def check_deployment(deployment: Json, component: Component, inventory: Inventory) -> tuple[UpgradeFinding, ...]:
    """What loses queries during a rollout: probes, replicas, strategy, limits.

    They are blockers where this command does the rollout, and warnings where others do it.
    """
    severity: Severity = "blocker" if component.owner == "cluster" else "warning"
    return (
        *_probe(deployment, component, severity),
        *_replicas(deployment, component, severity),
        *_lameduck(deployment, component, inventory),
        *_limits(deployment, component, inventory),
        *_guards(component, inventory),
    )


def _main(deployment: Json) -> Json:
    containers = containers_of(deployment)
    return containers[0][0] if containers else {}


def _probe(deployment: Json, component: Component, severity: Severity) -> Iterator[UpgradeFinding]:
    path = "spec.template.spec.containers[coredns].readinessProbe"
    probe = _main(deployment).get("readinessProbe")
    if not probe:
        message = "is missing: a new pod gets queries before it has the Services of the cluster"
        remedy = "add a probe of port 8181, path /ready, and the plugin ready to the Corefile"
        yield _finding(severity, component.title, path, message, remedy)
        return
    text = _http_path(probe)
    if text and text != "/ready":
        message = f"asks {text}, which is answered before the Services of the cluster are there"
        yield _finding("warning", component.title, path, message, "ask port 8181, path /ready")


def _http_path(probe: Json) -> str:
    """The path of an HTTP probe; empty for another kind of probe."""
    return str((probe.get("httpGet") or {}).get("path", ""))


def _replicas(deployment: Json, component: Component, severity: Severity) -> Iterator[UpgradeFinding]:
    spec = deployment.get("spec") or {}
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    unavailable = rolling.get("maxUnavailable", "25%")
    if component.update_strategy != "RollingUpdate":
        message = f"is {component.update_strategy}: all pods end before the first new pod starts"
        yield _finding(
            severity, component.title, "spec.strategy.type", message, "set RollingUpdate with maxUnavailable 1"
        )
    if component.replicas < 2:
        message = f"is {component.replicas}: with one pod any restart is an outage of DNS"
        yield _finding(severity, component.title, "spec.replicas", message, "scale to 2 or more")
    elif _absolute(unavailable, component.replicas) > max(1, component.replicas // 2):
        message = f"is {unavailable} of {component.replicas} replicas, so that most of them end at the same time"
        remedy = "set it to 1"
        yield _finding("warning", component.title, "spec.strategy.rollingUpdate.maxUnavailable", message, remedy)


def _absolute(value: Any, replicas: int) -> int:
    text = str(value)
    digits = text.removesuffix("%")
    if not digits.isdigit():
        return 0
    return replicas * int(digits) // 100 if text.endswith("%") else int(digits)


def _lameduck(deployment: Json, component: Component, inventory: Inventory) -> Iterator[UpgradeFinding]:
    corefile = inventory.config_maps.get(f"{SYSTEM}/{MAIN}", {}).get("Corefile", "")
    if corefile and "lameduck" not in corefile:
        message = f"health has no lameduck: a pod that ends loses the queries of the last {_LAMEDUCK_S} s"
        yield _finding("warning", f"ConfigMap {SYSTEM}/{MAIN}", "data.Corefile", message, "add `lameduck 5s` to health")
    grace = template_of(deployment).get("terminationGracePeriodSeconds", _GRACE_S)
    if isinstance(grace, int) and grace <= _LAMEDUCK_S:
        path = "spec.template.spec.terminationGracePeriodSeconds"
        message = f"is {grace}, which does not leave the time of lameduck"
        yield _finding("warning", component.title, path, message, f"set it to {_GRACE_S}")


def _limits(deployment: Json, component: Component, inventory: Inventory) -> Iterator[UpgradeFinding]:
    limits = (_main(deployment).get("resources") or {}).get("limits") or {}
    path = "spec.template.spec.containers[coredns].resources.limits"
    if "cpu" in limits:
        message = f"cpu {limits['cpu']}: the kernel stops a pod that used its share, and queries time out meanwhile"
        yield _finding("warning", component.title, path, message, "remove the limit of CPU time, keep the request")
    if limits.get("memory") == "170Mi" and len(inventory.nodes) >= 500:
        message = f"memory 170Mi is kubeadm's value, and the cluster has {len(inventory.nodes)} nodes"
        remedy = "compare with what the pods use; CoreDNS needs about 54 MB and 1 MB for each 1000 pods and Services"
        yield _finding("warning", component.title, path, message, remedy)


def _guards(component: Component, inventory: Inventory) -> Iterator[UpgradeFinding]:
    for autoscaler in inventory.autoscalers:
        target = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind") == component.kind and target.get("name") == component.workload:
            name = f"HorizontalPodAutoscaler {SYSTEM}/{autoscaler['metadata']['name']}"
            yield _finding("info", name, "", "sets the replicas of CoreDNS", "the upgrade leaves the number to it")
    covered = any(budget.metadata.namespace == SYSTEM and _covers(budget.spec.selector) for budget in inventory.budgets)
    if component.replicas > 1 and not covered:
        message = "has no PodDisruptionBudget: draining two nodes at once may end all of its pods"
        yield _finding("info", component.title, "", message, "make one with maxUnavailable 1")


def _covers(selector: LabelSelector | None) -> bool:
    return selector is not None and selector.matches({"k8s-app": "kube-dns"})


def _finding(severity: Severity, source: str, field: str, message: str, remedy: str) -> UpgradeFinding:
    return UpgradeFinding(severity=severity, object=source, field=field, message=message, remedy=remedy)
