"""The stock manifests of kubeadm and how a workload differs from them. Pure.

The values are those of kubeadm's templates for kube-proxy and CoreDNS (``cmd/kubeadm/app/phases/addons``), Kubernetes
1.30 to 1.36. An upgrade by this command patches images and the Corefile alone, so that every difference stays; kubeadm
would set most of them back.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.upgrade.inventory.inventory import Json
from podwire.upgrade.plan.values import UpgradeFinding

_COREDNS: Json = {
    "replicas": 2,
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    "template": {
        "spec": {
            "priorityClassName": "system-cluster-critical",
            "serviceAccountName": "coredns",
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 100,
                            "podAffinityTerm": {
                                "labelSelector": {
                                    "matchExpressions": [{"key": "k8s-app", "operator": "In", "values": ["kube-dns"]}]
                                },
                                "topologyKey": "kubernetes.io/hostname",
                            },
                        }
                    ]
                }
            },
            "tolerations": [
                {"key": "CriticalAddonsOnly", "operator": "Exists"},
                {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
            ],
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "dnsPolicy": "Default",
            "containers": [
                {
                    "name": "coredns",
                    "resources": {"limits": {"memory": "170Mi"}, "requests": {"cpu": "100m", "memory": "70Mi"}},
                    "args": ["-conf", "/etc/coredns/Corefile"],
                    "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": True}],
                    "readinessProbe": {"httpGet": {"path": "/ready"}},
                    "livenessProbe": {"httpGet": {"path": "/health"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                }
            ],
            "volumes": [
                {
                    "name": "config-volume",
                    "configMap": {"name": "coredns", "items": [{"key": "Corefile", "path": "Corefile"}]},
                }
            ],
        }
    },
}

_KUBE_PROXY: Json = {
    "updateStrategy": {"type": "RollingUpdate"},
    "template": {
        "spec": {
            "priorityClassName": "system-node-critical",
            "serviceAccountName": "kube-proxy",
            "hostNetwork": True,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "kube-proxy",
                    "command": [
                        "/usr/local/bin/kube-proxy",
                        "--config=/var/lib/kube-proxy/config.conf",
                        "--hostname-override=$(NODE_NAME)",
                    ],
                    "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "volumeMounts": [
                        {"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"},
                        {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
                        {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
                {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
                {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
            ],
        }
    },
}

STOCK: Mapping[str, Json] = {"coredns": _COREDNS, "kube-proxy": _KUBE_PROXY}
"""By component the ``spec`` of kubeadm's workload, without images."""

_EXTRA: Mapping[str, tuple[str, ...]] = {
    "template.spec": (
        "affinity", "dnsConfig", "hostAliases", "hostNetwork", "imagePullSecrets", "initContainers", "nodeSelector",
        "runtimeClassName", "tolerations", "topologySpreadConstraints",
    ),
    "container": ("args", "command", "env", "envFrom", "lifecycle", "resources", "startupProbe"),
}  # fmt: skip
"""Fields that the API server does not fill in, so that somebody set them where the stock manifest has none."""

_EMPTY: tuple[object, ...] = (None, {}, [], False, "")
_NAMES = ("name", "mountPath", "key")
"""What identifies an entry of a list, the first that all entries have."""
_LONGEST = 120


def differences(component: str, workload: Json) -> tuple[UpgradeFinding, ...]:
    """What differs from the stock manifest, one finding each; none for a component without one."""
    stock = STOCK.get(component)
    if stock is None:
        return ()
    meta = workload.get("metadata") or {}
    kind = "DaemonSet" if component == "kube-proxy" else "Deployment"
    title = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
    spec = workload.get("spec") or {}
    lines = [*_compare(stock, spec, "spec"), *_extras(stock, spec)]
    return tuple(
        UpgradeFinding(severity="info", object=title, field=path, message=message, remedy="the upgrade keeps it")
        for path, message in lines
    )


def _compare(stock: object, live: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(stock, dict) and isinstance(live, dict):
        for key, value in stock.items():
            yield from _compare(value, live.get(key), f"{path}.{key}")
    elif isinstance(stock, list) and isinstance(live, list):
        yield from _compare_lists(stock, live, path)
    elif stock != live:
        yield path, f"is {_text(live)}, and {_text(stock)} in kubeadm's manifest"


def _compare_lists(stock: list[Any], live: list[Any], path: str) -> Iterator[tuple[str, str]]:
    name = next((name for name in _NAMES if all(isinstance(i, dict) and name in i for i in (*stock, *live))), "")
    if not name:
        missing = [item for item in stock if item not in live]
        added = [item for item in live if item not in stock]
        if missing or added:
            texts = [f"lacks {_text(item)}" for item in missing] + [f"also has {_text(item)}" for item in added]
            yield path, ", ".join(texts)
        return
    present = {item[name]: item for item in live}
    for item in stock:
        if item[name] in present:
            yield from _compare(item, present[item[name]], f"{path}[{item[name]}]")
        else:
            yield f"{path}[{item[name]}]", "is missing, and kubeadm's manifest has it"
    for key in present.keys() - {item[name] for item in stock}:
        yield f"{path}[{key}]", "is not in kubeadm's manifest"


def _extras(stock: Json, spec: Json) -> Iterator[tuple[str, str]]:
    """Fields that the stock manifest does not have."""
    stock_pod, pod = _pod(stock), _pod(spec)
    for field in _EXTRA["template.spec"]:
        if field not in stock_pod and pod.get(field) not in _EMPTY:
            yield f"spec.template.spec.{field}", f"is {_text(pod[field])}, and kubeadm's manifest has none"
    stock_containers = {container["name"]: container for container in stock_pod["containers"]}
    for container in pod.get("containers") or ():
        name = container.get("name")
        if name not in stock_containers:
            continue
        path = f"spec.template.spec.containers[{name}]"
        for field in _EXTRA["container"]:
            if field not in stock_containers[name] and container.get(field) not in _EMPTY:
                yield f"{path}.{field}", f"is {_text(container[field])}, and kubeadm's manifest has none"
        resources = stock_containers[name].get("resources", {})
        for kind, amounts in (container.get("resources") or {}).items():
            for key in set(amounts or {}) - set(resources.get(kind, {})) if resources else ():
                yield f"{path}.resources.{kind}.{key}", f"is {amounts[key]}, and kubeadm's manifest has none"


def _pod(spec: Json) -> Json:
    template = (spec.get("template") or {}).get("spec") or {}
    return template if isinstance(template, dict) else {}


def _text(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
