"""How workloads of a cluster look in its local copy. Pure.

A workload of the network keeps its kind, name, labels, strategy, probe of readiness, ports, node selector, tolerations
and affinity, and the volumes that the upgrade looks at: ConfigMaps and the directory of network configurations. Its
images run what the copy has for them: a program that the user named, podwire's DNS server for CoreDNS, and the
stand-in server for all others. What needs the programs of the image, such as commands, hooks and mounts of the node, is
left out. podwire's own workloads stay as they are (:func:`own_workload`), since their program is at hand.

A workload behind a Service becomes a Deployment of stand-in servers with the same labels and ports.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.model.meta import Fact

Json = dict[str, Any]
STAND_IN = "stand-in"
"""The image of pods behind Services, which no entry of the copy's image table fits."""
MOST_REPLICAS = 2
"""Pods of a workload behind a Service."""
DNS_REPLICAS = 2
"""Pods of a Deployment of the network."""
_POD_FIELDS = (
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "dnsPolicy",
    "terminationGracePeriodSeconds",
)  # fmt: skip
_SPEC_FIELDS = ("selector", "strategy", "updateStrategy", "minReadySeconds", "progressDeadlineSeconds")
_COREFILE = "/etc/coredns/Corefile"


class WorkloadRoles(Fact, frozen=True, kw_only=True):
    """What the containers of the copy run, by the name of an image without tag and digest."""

    programs: tuple[str, ...] = ()
    """Images for which the user named a program; their arguments stay."""
    dns: tuple[str, ...] = ()
    """Images of CoreDNS, for which podwire's DNS server reads the Corefile."""
    conf_dir: str = "/etc/cni/net.d"


def network_workload(workload: Json, roles: WorkloadRoles) -> Json:
    """A DaemonSet or Deployment of the network as the copy has it."""
    meta, spec = workload["metadata"], workload["spec"]
    pod = spec["template"]["spec"]
    volumes = [volume for volume in pod.get("volumes") or () if _stays(volume, roles)]
    template: Json = {
        "metadata": {"labels": (spec["template"].get("metadata") or {}).get("labels") or {}},
        "spec": {
            **{field: pod[field] for field in _POD_FIELDS if pod.get(field) is not None},
            "containers": [_container(item, roles, _mounted(volumes)) for item in pod["containers"]],
        },
    }
    if pod.get("initContainers"):
        template["spec"]["initContainers"] = [_only(item, "name", "image") for item in pod["initContainers"]]
    if volumes:
        template["spec"]["volumes"] = volumes
    if _runs_program(pod, roles) and pod.get("serviceAccountName"):
        template["spec"]["serviceAccountName"] = pod["serviceAccountName"]
    copied: Json = {field: spec[field] for field in _SPEC_FIELDS if spec.get(field) is not None}
    if workload["kind"] == "Deployment":
        copied["replicas"] = min(int(spec.get("replicas", 1)), DNS_REPLICAS)
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": _only(meta, "name", "namespace", "labels"),
        "spec": copied | {"template": template},
    }


def own_workload(workload: Json, api: tuple[str, int]) -> Json:
    """A workload of podwire as the copy has it: the same, with the address of the copy's API server."""
    template = workload["spec"]["template"]
    containers = [item | {"env": _with_api(item.get("env") or (), api)} for item in template["spec"]["containers"]]
    template = template | {"spec": template["spec"] | {"containers": containers}}
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": _only(workload["metadata"], "name", "namespace", "labels"),
        "spec": workload["spec"] | {"template": template},
    }


def _with_api(environment: Iterable[Json], api: tuple[str, int]) -> list[Json]:
    values = {"KUBERNETES_SERVICE_HOST": api[0], "KUBERNETES_SERVICE_PORT": str(api[1])}
    return [
        {"name": entry["name"], "value": values[entry["name"]]} if entry["name"] in values else entry
        for entry in environment
    ]


def _stays(volume: Json, roles: WorkloadRoles) -> bool:
    """Whether a volume is in the copy: a ConfigMap, an empty directory, or the directory of configurations."""
    path = str((volume.get("hostPath") or {}).get("path", "")).rstrip("/")
    return "configMap" in volume or "emptyDir" in volume or path == roles.conf_dir.rstrip("/")


def _mounted(volumes: Iterable[Json]) -> set[str]:
    """The names of volumes that containers mount: those without files of the node."""
    return {str(volume["name"]) for volume in volumes if "hostPath" not in volume}


def _container(item: Json, roles: WorkloadRoles, volumes: set[str]) -> Json:
    image = str(item["image"])
    mounts = [mount for mount in item.get("volumeMounts") or () if mount["name"] in volumes]
    container = _only(item, "name", "image", "ports")
    if "ports" in container:
        container["ports"] = [_only(port, "name", "containerPort", "protocol") for port in container["ports"]]
    if mounts:
        container["volumeMounts"] = mounts
    if probe := _probe(item.get("readinessProbe")):
        container["readinessProbe"] = probe
    if is_of(image, roles.programs):
        container |= _only(item, "args")
        container["env"] = [entry for entry in item.get("env") or () if "valueFrom" not in entry]
    elif is_of(image, roles.dns):
        container["args"] = ["dns", "--corefile", corefile_of(item.get("args") or ())]
    return container


def corefile_of(arguments: Iterable[str]) -> str:
    """The file that the arguments of CoreDNS name."""
    options = [option for argument in arguments for option in str(argument).split("=", 1)]
    names = (options[at + 1] for at, option in enumerate(options[:-1]) if option in ("-conf", "--conf"))
    return next(names, _COREFILE)


def _probe(probe: Json | None) -> Json:
    """The probe of readiness without what needs a program of the image; empty for a command."""
    if not probe or "exec" in probe:
        return {}
    result = dict(probe)
    for kind in ("httpGet", "tcpSocket"):
        if kind in result:
            result[kind] = {key: value for key, value in result[kind].items() if key != "host"}
    return result


def _runs_program(pod: Json, roles: WorkloadRoles) -> bool:
    return any(is_of(str(item["image"]), (*roles.programs, *roles.dns)) for item in pod["containers"])


def is_of(image: str, names: Iterable[str]) -> bool:
    """Whether an image has one of the names, whatever its tag and digest are."""
    return any(image == name or image.startswith((f"{name}:", f"{name}@")) for name in names)


def _only(item: Mapping[str, Any], *fields: str) -> Json:
    return {field: item[field] for field in fields if item.get(field) is not None}


def served_workload(workload: Json) -> Json:
    """The Deployment of stand-in servers that takes the place of a workload behind a Service."""
    meta, spec = workload["metadata"], workload["spec"]
    template = spec["template"]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    containers = [
        {"name": item["name"], "image": STAND_IN, **_ports(item)} for item in template["spec"].get("containers") or ()
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{meta['name']}-{workload['kind'].lower()}", "namespace": meta["namespace"]},
        "spec": {
            "replicas": min(int(spec.get("replicas", 1)), MOST_REPLICAS),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def _ports(container: Json) -> Json:
    ports = [_only(port, "name", "containerPort", "protocol") for port in container.get("ports") or ()]
    return {"ports": ports} if ports else {}
