"""Checks of pods and pod templates: ``pkg/apis/core/validation/validation.go`` as far as a cluster here uses it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from podwire.embedded.apiserver.defaults.pods import qos_class
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.embedded.apiserver.schema.quantity import parse
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.metadata import check_annotations, check_labels

Json = dict[str, Any]

PROTOCOLS = ("SCTP", "TCP", "UDP")
_AT_LEAST_0 = "must be greater than or equal to 0"
_ABOVE_0 = "must be greater than 0"
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_NOT_EPHEMERAL = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "restartPolicy")
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL_LENGTH = 253
_OPERATORS = ("Exists", "Equal", "Lt", "Gt")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_required(value: Any, schema: SchemaNode, path: str) -> Iterator[Cause]:
    """Fields that the schema requires and that are missing or empty."""
    if isinstance(value, dict):
        for name in schema.required:
            if name not in value or value[name] in (None, "", []):
                yield causes.required(f"{path}.{name}")
        for name, item in value.items():
            sub = schema.properties.get(name)
            if sub is not None and isinstance(item, dict | list):
                yield from check_required(item, sub, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield from check_required(item, schema.items, f"{path}[{index}]")


def one_of(value: Any, allowed: Sequence[str], path: str) -> Iterator[Cause]:
    """A value that must be one of the known values, if it is set."""
    if value is not None and value not in allowed:
        yield causes.unsupported(path, value, allowed)


def at_least(value: Any, least: int, path: str) -> Iterator[Cause]:
    """A number that may not be smaller, where it is set."""
    if isinstance(value, int) and value < least:
        text = _AT_LEAST_0 if least == 0 else _ABOVE_0 if least == 1 else f"must be greater than or equal to {least}"
        yield causes.invalid(path, value, text)


def _ports(container: Json, path: str) -> Iterator[Cause]:
    known_names: set[str] = set()
    for index, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{index}]"
        name = port.get("name")
        if name:
            if problem := names.port_name(name):
                yield causes.invalid(f"{where}.name", name, problem)
            elif name in known_names:
                yield causes.duplicate(f"{where}.name", name)
            known_names.add(name)
        if port.get("containerPort") == 0:
            yield causes.required(f"{where}.containerPort")
        for field in ("containerPort", "hostPort"):
            if port.get(field) and (problem := names.port(port[field])):
                yield causes.invalid(f"{where}.{field}", port[field], problem)
        yield from one_of(port.get("protocol"), PROTOCOLS, f"{where}.protocol")


def _environment(container: Json, path: str) -> Iterator[Cause]:
    for index, variable in enumerate(container.get("env") or ()):
        where = f"{path}.env[{index}]"
        name = variable.get("name")
        if name and (problem := names.env(name)):
            yield causes.invalid(f"{where}.name", name, problem)
        source = variable.get("valueFrom")
        if source is None:
            continue
        if not source:
            text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
            yield causes.invalid(f"{where}.valueFrom", "", text)
        elif len(source) > 1:
            yield causes.invalid(f"{where}.valueFrom", "", "may not have more than one field specified at a time")
        if source and variable.get("value"):
            yield causes.invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")


def _mounts(container: Json, path: str, volumes: set[str]) -> Iterator[Cause]:
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{index}]"
        name, mount_path = mount.get("name"), mount.get("mountPath")
        if name and name not in volumes:
            yield causes.not_found(f"{where}.name", name)
        if mount_path in paths:
            yield causes.invalid(f"{where}.mountPath", mount_path, "must be unique")
        paths.add(mount_path or "")
        if mount.get("subPath") and ".." in mount["subPath"].split("/"):
            yield causes.invalid(f"{where}.subPath", mount["subPath"], "must not contain '..'")


def _probe(container: Json, path: str) -> Iterator[Cause]:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if not isinstance(probe, dict):
            continue
        where = f"{path}.{name}"
        yield from _handler(probe, where)
        yield from at_least(probe.get("initialDelaySeconds"), 0, f"{where}.initialDelaySeconds")
        for field in ("timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
            yield from at_least(probe.get(field), 1, f"{where}.{field}")
        if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield causes.invalid(f"{where}.successThreshold", probe["successThreshold"], "must be 1")
    for hook, action in (container.get("lifecycle") or {}).items():
        if hook in ("postStart", "preStop") and isinstance(action, dict) and "sleep" not in action:
            yield from _handler(action, f"{path}.lifecycle.{hook}")


def _handler(handler: Json, path: str) -> Iterator[Cause]:
    kinds = [kind for kind in _HANDLERS if handler.get(kind) is not None]
    if not kinds:
        yield causes.required(path, "must specify a handler type")
    for kind in kinds[1:]:
        yield causes.forbidden(f"{path}.{kind}", "may not specify more than 1 handler type")
    for kind in ("httpGet", "tcpSocket"):
        port = (handler.get(kind) or {}).get("port")
        if port is not None and (problem := names.port_or_name(port)):
            yield causes.invalid(f"{path}.{kind}.port", port, problem)


def _resources(container: Json, path: str) -> Iterator[Cause]:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for list_name in ("limits", "requests"):
        for name, text in (resources.get(list_name) or {}).items():
            if parse(str(text))[0] < 0:
                yield causes.invalid(f"{path}.resources.{list_name}[{name}]", text, _AT_LEAST_0)
    for name, text in requests.items():
        if name in limits and parse(str(text))[0] > parse(str(limits[name]))[0]:
            detail = f"must be less than or equal to {name} limit of {limits[name]}"
            yield causes.invalid(f"{path}.resources.requests", text, detail)


def _container(container: Json, path: str, volumes: set[str]) -> Iterator[Cause]:
    name, image = container.get("name"), container.get("image")
    if name and (problem := names.label(name)):
        yield causes.invalid(f"{path}.name", name, problem)
    if not image:
        yield causes.required(f"{path}.image")
    elif image != image.strip():
        yield causes.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    policies = ("Always", "IfNotPresent", "Never")
    yield from one_of(container.get("imagePullPolicy"), policies, f"{path}.imagePullPolicy")
    messages = ("File", "FallbackToLogsOnError")
    yield from one_of(container.get("terminationMessagePolicy"), messages, f"{path}.terminationMessagePolicy")
    for check in (_ports, _environment, _probe, _resources):
        yield from check(container, path)
    yield from _mounts(container, path, volumes)


def _containers(spec: Json, path: str, volumes: set[str]) -> Iterator[Cause]:
    known_names: set[str] = set()
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{index}]"
            yield from _container(container, where, volumes)
            name = container.get("name") or ""
            if name in known_names:
                yield causes.duplicate(f"{where}.name", name)
            known_names.add(name)
    used: set[tuple[object, ...]] = set()
    for index, container in enumerate(spec.get("containers") or ()):
        for number, port in enumerate(container.get("ports") or ()):
            key = (port.get("hostPort"), port.get("protocol"), port.get("hostIP"))
            where = f"{path}.containers[{index}].ports[{number}].hostPort"
            if key[0] and key in used:
                yield causes.duplicate(where, f"{key[1]}/{key[2] or ''}/{key[0]}")
            used.add(key)
            if spec.get("hostNetwork") and port.get("hostPort") not in (None, port.get("containerPort")):
                yield causes.invalid(where, port["hostPort"], "must match `containerPort` when `hostNetwork` is true")


def _volumes(spec: Json, path: str) -> Iterator[Cause]:
    known_names: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        where, name = f"{path}.volumes[{index}]", volume.get("name") or ""
        if name and (problem := names.label(name)):
            yield causes.invalid(f"{where}.name", name, problem)
        if name in known_names:
            yield causes.duplicate(f"{where}.name", name)
        known_names.add(name)
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        for extra in sources[1:]:
            yield causes.forbidden(f"{where}.{extra}", "may not specify more than 1 volume type")
        if not sources:
            yield causes.required(where, "must specify a volume type")
        yield from _projected_sources(volume, where)


def _projected_sources(volume: Json, where: str) -> Iterator[Cause]:
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        if sum(value is not None for value in source.values()) > 1:
            path = f"{where}.projected.sources[{index}]"
            yield causes.forbidden(path, "may not specify more than 1 volume type per source")


def _scheduling(spec: Json, path: str) -> Iterator[Cause]:
    yield from check_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    for index, item in enumerate(spec.get("tolerations") or ()):
        where = f"{path}.tolerations[{index}]"
        operator = item.get("operator") or "Equal"
        yield from one_of(operator, _OPERATORS, f"{where}.operator")
        yield from one_of(item.get("effect") or None, _EFFECTS, f"{where}.effect")
        if not item.get("key") and operator != "Exists":
            yield causes.invalid(
                f"{where}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        if operator == "Exists" and item.get("value"):
            yield causes.invalid(f"{where}.operator", item, "value must be empty when `operator` is 'Exists'")
        if item.get("tolerationSeconds") is not None and item.get("effect") != "NoExecute":
            yield causes.invalid(
                f"{where}.effect",
                item.get("effect", ""),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            )
    for index, item in enumerate(spec.get("topologySpreadConstraints") or ()):
        where = f"{path}.topologySpreadConstraints[{index}]"
        yield from at_least(item.get("maxSkew"), 1, f"{where}.maxSkew")
        yield from one_of(
            item.get("whenUnsatisfiable"), ("DoNotSchedule", "ScheduleAnyway"), f"{where}.whenUnsatisfiable"
        )


def _sysctls(spec: Json, path: str) -> Iterator[Cause]:
    known_names: set[str] = set()
    for index, item in enumerate((spec.get("securityContext") or {}).get("sysctls") or ()):
        name, where = item.get("name") or "", f"{path}.securityContext.sysctls[{index}].name"
        if name in known_names:
            yield causes.duplicate(where, name)
        elif name and (len(name) > _SYSCTL_LENGTH or not re.fullmatch(_SYSCTL, name)):
            yield causes.invalid(
                where, name, f"must have at most {_SYSCTL_LENGTH} characters and match regex {_SYSCTL}"
            )
        known_names.add(name)


def check_spec(spec: Json, path: str, claims: Iterable[str] = ()) -> Iterator[Cause]:
    """A pod's spec, in a pod or in a template; ``claims`` are volumes that a StatefulSet adds to its pods."""
    schema = data.named("io.k8s.api.core.v1.PodSpec")
    yield from check_required(spec, schema, path)
    yield from _volumes(spec, path)
    yield from _containers(spec, path, {volume.get("name") or "" for volume in spec.get("volumes") or ()} | set(claims))
    yield from one_of(spec.get("restartPolicy"), ("Always", "Never", "OnFailure"), f"{path}.restartPolicy")
    policies = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
    yield from one_of(spec.get("dnsPolicy"), policies, f"{path}.dnsPolicy")
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        yield causes.required(f"{path}.dnsConfig.nameservers", detail)
    yield from _scheduling(spec, path)
    yield from _sysctls(spec, path)
    for field in ("hostname", "subdomain"):
        if spec.get(field) and (problem := names.label(spec[field])):
            yield causes.invalid(f"{path}.{field}", spec[field], problem)
    for field in ("serviceAccountName", "nodeName", "priorityClassName"):
        if spec.get(field) and (problem := names.subdomain(spec[field])):
            yield causes.invalid(f"{path}.{field}", spec[field], problem)
    yield from at_least(spec.get("terminationGracePeriodSeconds"), 0, f"{path}.terminationGracePeriodSeconds")
    yield from at_least(spec.get("activeDeadlineSeconds"), 1, f"{path}.activeDeadlineSeconds")


def check_template(template: Any, path: str, claims: Iterable[str] = ()) -> Iterator[Cause]:
    """A pod template; ``claims`` are volumes that a StatefulSet adds to its pods."""
    if not isinstance(template, dict):
        yield causes.required(path)
        return
    meta = template.get("metadata") or {}
    yield from check_labels(meta.get("labels"), f"{path}.labels")
    yield from check_annotations(meta.get("annotations"), f"{path}.annotations")
    yield from check_spec(template.get("spec") or {}, f"{path}.spec", claims)


def _frozen(spec: Json, old: Json) -> Json:
    """The spec with all mutable fields set back to their old values."""
    out = dict(spec)
    for field in ("containers", "initContainers"):
        pairs = zip(spec.get(field) or (), old.get(field) or (), strict=False)
        same = len(spec.get(field) or ()) == len(old.get(field) or ())
        if same and field in spec:
            out[field] = [{**new, "image": was.get("image")} for new, was in pairs]
    free = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if not old.get("nodeName"):
        free.append("nodeName")
    if (old.get("terminationGracePeriodSeconds") or 0) < 0:
        free.append("terminationGracePeriodSeconds")
    for field in free:
        if field in old:
            out[field] = old[field]
        else:
            out.pop(field, None)
    return out


def check_pod(new: Json, old: Json | None) -> Iterator[Cause]:
    """A Pod; in an existing Pod only a few fields may change."""
    spec: Json = new.get("spec") or {}
    yield from check_spec(spec, "spec")
    if old is None:
        if spec.get("ephemeralContainers"):
            yield causes.forbidden("spec.ephemeralContainers", "cannot be set on create")
        return
    was: Json = old.get("spec") or {}
    removed = [item for item in was.get("tolerations") or () if item not in (spec.get("tolerations") or ())]
    if removed or _frozen(spec, was) != was:
        yield causes.forbidden("spec", _MUTABLE)


def check_resize(new: Json, old: Json) -> Iterator[Cause]:
    """A pod whose containers get other resources: the class of service stays."""
    before, after = qos_class(old.get("spec") or {}), qos_class(new.get("spec") or {})
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(new["spec"].get(kind) or ()):
            yield from _resources(container, f"spec.{kind}[{index}]")
    if before != after:
        yield causes.invalid("spec", after, "Pod QOS Class may not change as a result of resizing")


def check_ephemeral(new: Json, old: Json) -> Iterator[Cause]:
    """The ephemeral containers of a Pod, which can be added, but neither changed nor removed."""
    spec: Json = new.get("spec") or {}
    yield from check_spec(spec, "spec")
    ephemeral = {str(c.get("name")): c for c in spec.get("ephemeralContainers") or ()}
    for was in (old.get("spec") or {}).get("ephemeralContainers") or ():
        name = str(was.get("name"))
        if ephemeral.get(name) != was:
            verb = "changed" if name in ephemeral else "removed"
            problem = f'existing ephemeral containers "{name}" may not be {verb}'
            yield causes.forbidden("spec.ephemeralContainers", problem)
    targets = {c.get("name") for c in spec.get("containers") or ()}
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        where = f"spec.ephemeralContainers[{index}]"
        for field in _NOT_EPHEMERAL:
            if container.get(field):
                yield causes.forbidden(f"{where}.{field}", "cannot be set for an Ephemeral Container")
        target = container.get("targetContainerName")
        if target and target not in targets:
            yield causes.not_found(f"{where}.targetContainerName", target)
