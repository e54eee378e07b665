"""Defaults of pods and pod templates, and what admission adds to a Pod.

Sources: ``pkg/apis/core/v1/defaults.go`` and the admission plugins DefaultTolerationSeconds, Priority and
ServiceAccount of Kubernetes. Everything here runs on every write and changes nothing the second time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_MODE = 0o644
_TOLERATED_S = 300
_TOKEN_S = 3607
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME = "kube-api-access-"
"""How the name of a token's volume begins."""
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def fill(target: Json, values: Mapping[str, Any]) -> None:
    """Set the fields that are missing or null."""
    for key, value in values.items():
        if target.get(key) is None:
            target[key] = value


def items_of(obj: Json, *fields: str) -> Iterator[Json]:
    """All objects in the named lists of objects."""
    for field in fields:
        for item in obj.get(field) or ():
            if isinstance(item, dict):
                yield item


def section(obj: Json, field: str) -> Json:
    """The object in a field, made where it is missing."""
    if not isinstance(obj.get(field), dict):
        obj[field] = {}
    out: Json = obj[field]
    return out


def tag(image: str) -> str:
    """The tag of an image, ``latest`` where it has neither tag nor digest, empty for a digest."""
    if "@" in image:
        return ""
    name = image.rsplit("/", 1)[-1]
    return name.split(":", 1)[1] if ":" in name else "latest"


def _http(action: Json) -> None:
    if isinstance(action.get("httpGet"), dict):
        fill(action["httpGet"], {"path": "/", "scheme": "HTTP"})
    if isinstance(action.get("grpc"), dict):
        fill(action["grpc"], {"service": ""})


def _container(container: Json) -> None:
    policy = "Always" if tag(container.get("image") or "") == "latest" else "IfNotPresent"
    fill(
        container,
        {
            "imagePullPolicy": policy,
            "resources": {},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    for port in items_of(container, "ports"):
        fill(port, {"protocol": "TCP"})
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            fill(container[probe], _PROBE)
            _http(container[probe])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _http(hook)
    for variable in items_of(container, "env"):
        source = variable.get("valueFrom") or {}
        if isinstance(source.get("fieldRef"), dict):
            fill(source["fieldRef"], {"apiVersion": "v1"})
        if isinstance(source.get("resourceFieldRef"), dict):
            fill(source["resourceFieldRef"], {"divisor": "0"})


def _downward(source: Json) -> None:
    for item in items_of(source, "items"):
        if isinstance(item.get("fieldRef"), dict):
            fill(item["fieldRef"], {"apiVersion": "v1"})


def _volume(volume: Json) -> None:
    if not any(value is not None for key, value in volume.items() if key != "name"):
        volume["emptyDir"] = {}
    for kind in ("secret", "configMap", "downwardAPI", "projected"):
        if isinstance(volume.get(kind), dict):
            fill(volume[kind], {"defaultMode": _MODE})
    _downward(volume.get("downwardAPI") or {})
    for source in items_of(volume.get("projected") or {}, "sources"):
        _downward(source.get("downwardAPI") or {})
        if isinstance(source.get("serviceAccountToken"), dict):
            fill(source["serviceAccountToken"], {"expirationSeconds": 3600})
    if isinstance(volume.get("hostPath"), dict):
        fill(volume["hostPath"], {"type": ""})
    template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if isinstance(template, dict):
        fill(section(template, "spec"), {"volumeMode": "Filesystem"})


def fill_spec(spec: Json) -> None:
    """Defaults that pods and templates of pods share."""
    fill(
        spec,
        {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
        },
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in items_of(spec, "containers", "initContainers", "ephemeralContainers"):
        _container(container)
    for volume in items_of(spec, "volumes"):
        _volume(volume)


def fill_template(owner: Json, field: str = "template") -> None:
    """Defaults of a pod template in a workload's spec."""
    template = owner.get(field)
    if isinstance(template, dict):
        section(template, "metadata")
        fill_spec(section(template, "spec"))


def _requests(container: Json) -> None:
    """A limit without a request is also the request."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        fill(section(resources, "requests"), limits)


def _tolerate(spec: Json) -> None:
    tolerations = spec.get("tolerations") or []
    for key in _TOLERATED:
        covered = any(
            item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "") for item in tolerations
        )
        if not covered:
            entry = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append(entry | {"tolerationSeconds": _TOLERATED_S})
    spec["tolerations"] = tolerations


def qos_class(spec: Json) -> str:
    """The quality-of-service class: BestEffort, Burstable or Guaranteed."""
    guaranteed, requested = True, False
    for container in items_of(spec, "containers", "initContainers"):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            requested = requested or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not requested else "Guaranteed" if guaranteed else "Burstable"


def fill_pod(pod: Json) -> None:
    """Defaults of a Pod, with what admission adds."""
    spec = section(pod, "spec")
    fill_spec(spec)
    fill(
        spec,
        {
            "enableServiceLinks": True,
            "serviceAccountName": "default",
            "serviceAccount": spec.get("serviceAccountName") or "default",
        },
    )
    for container in items_of(spec, "containers", "initContainers"):
        _requests(container)
        for port in items_of(container, "ports") if spec.get("hostNetwork") else ():
            fill(port, {"hostPort": port.get("containerPort")})
    _tolerate(spec)
    fill(section(pod, "status"), {"phase": "Pending", "qosClass": qos_class(spec)})


def mount_token(pod: Json, name: str) -> None:
    """Give every container the token of the pod's ServiceAccount, as admission does on creation.

    ``name`` is that of the new volume. Nothing changes for a container that mounts something at that place
    already; a volume for the purpose that is in the spec (of a copied pod) is used in place of a new one.
    """
    spec = section(pod, "spec")
    token_volumes = (v["name"] for v in items_of(spec, "volumes") if str(v.get("name", "")).startswith(TOKEN_VOLUME))
    volume_name = next(token_volumes, None)
    mount = {"name": volume_name or name, "readOnly": True, "mountPath": _TOKEN_PATH}
    used = False
    for container in items_of(spec, "containers", "initContainers"):
        mounts = container.get("volumeMounts") or []
        if not any(item.get("mountPath") == _TOKEN_PATH for item in mounts):
            container["volumeMounts"] = [*mounts, dict(mount)]
            used = True
    if used and volume_name is None:
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": name, "projected": _token_sources()}]


def _token_sources() -> Json:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "defaultMode": _MODE,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _TOKEN_S, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
    }
