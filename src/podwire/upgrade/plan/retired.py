"""Parts of a cluster that their projects ended or that Kubernetes removes. Pure.

Sources: KEP-5707 for externalIPs (deprecated in 1.36, off in 1.40, removed in 1.43); the retirement of ingress-nginx in
March 2026; kubeadm without kube-dns since 1.21; the archive of Weave Net in June 2024.
"""

from collections.abc import Iterator

from podwire.upgrade.inventory.components import Components
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.values import Severity, UpgradeFinding
from podwire.upgrade.plan.versions import Version

EXTERNAL_IPS_DEPRECATED, EXTERNAL_IPS_OFF, EXTERNAL_IPS_REMOVED = 36, 40, 43
_INGRESS_NGINX = "k8s.io/ingress-nginx"
_LISTED = 3


def find_retired(inventory: Inventory, components: Components, target: Version) -> tuple[UpgradeFinding, ...]:
    """One finding for each retired part that is in use."""
    return (
        *_external_ips(inventory, target),
        *_ingress_nginx(inventory, components),
        *_kube_dns(components),
        *_weave(components),
    )


def _external_ips(inventory: Inventory, target: Version) -> Iterator[UpgradeFinding]:
    names = [f"{s.metadata.namespace}/{s.metadata.name}" for s in inventory.services if s.spec.external_ips]
    if not names:
        return
    severity: Severity = "info"
    text = f"deprecated since 1.{EXTERNAL_IPS_DEPRECATED}, off by default in 1.{EXTERNAL_IPS_OFF}"
    if target.minor >= EXTERNAL_IPS_OFF:
        severity = "blocker"
    elif target.minor >= EXTERNAL_IPS_DEPRECATED:
        severity = "warning"
    yield UpgradeFinding(
        severity=severity,
        object=f"Service {names[0]}",
        field="spec.externalIPs",
        message=f"{text}, removed in 1.{EXTERNAL_IPS_REMOVED}; used by {_listed(names)}",
        remedy="use a load balancer (type LoadBalancer with an address pool) or a Gateway",
    )


def _ingress_nginx(inventory: Inventory, components: Components) -> Iterator[UpgradeFinding]:
    component = components.component("ingress-nginx")
    classes = [item.ingress_class for item in inventory.ingress_controllers if item.controller == _INGRESS_NGINX]
    if component is None and not classes:
        return
    title = component.title if component is not None else f"IngressClass {classes[0]}"
    yield UpgradeFinding(
        severity="warning",
        object=title,
        message="ingress-nginx has had no releases and no security fixes since March 2026",
        remedy="move its Ingresses to another controller, such as podwire's gateway, in a step of its own",
    )


def _kube_dns(components: Components) -> Iterator[UpgradeFinding]:
    component = components.component("kube-dns")
    if component is None or component.owner == "cloud":
        return
    yield UpgradeFinding(
        severity="warning",
        object=component.title,
        message="kube-dns is retired; kubeadm installs only CoreDNS since 1.21",
        remedy="move to CoreDNS or podwire's DNS behind the same Service kube-dns; stub domains become server blocks",
    )


def _weave(components: Components) -> Iterator[UpgradeFinding]:
    component = components.component("weave-net")
    if component is not None:
        text = "Weave Net was archived in June 2024"
        yield UpgradeFinding(severity="warning", object=component.title, message=text, remedy="move to another network")


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
