"""A container's environment: variables, expansion, downward API, Service variables. Pure.

A later source replaces variables of an earlier source: Service variables, then ``envFrom``, then ``env``, each in its
own order. ``$(NAME)`` in a value is replaced by an earlier variable and stays as text when no such variable exists;
``$$`` is a dollar sign. Sources: kubernetes pkg/kubelet/envvars, third_party/forked/golang/expansion, API reference of
EnvVarSource.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import msgspec

from podwire.errors import ConfigError
from podwire.model.pod import Container, Pod
from podwire.model.service import Service

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")
_VALID_NAME = re.compile(r"^[!-<>-~][ -<>-~]*$")
"""Printable ASCII but ``=``; Kubernetes allows these names since 1.34 (KEP-4369)."""
_SHELL_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "": Decimal(1), "k": Decimal(1000),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


class ConfigLookup(Protocol):
    """Looks ConfigMaps and Secrets up by name; None when there is no such object."""

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a ConfigMap by key, in UTF-8."""
        ...

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a Secret by key, decoded from Base64."""
        ...


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with ``$(NAME)`` replaced by known variables."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text) if "$" in text else text


def quantity(value: str | int | float) -> Decimal:
    """A resource quantity as a number.

    Raises: ConfigError when the text is no quantity.
    """
    text = str(value)
    number = text.rstrip("numkKMGTPEi")
    try:
        return Decimal(number) * _SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError) as failure:
        raise ConfigError("quantity", "", f"{text!r} is not a quantity") from failure


def service_variables(services: Iterable[Service], namespace: str, *, links: bool) -> dict[str, str]:
    """The variables of a namespace's Services and of ``default/kubernetes``; without ``links`` only of the latter."""
    chosen: dict[str, Service] = {}
    for service in services:
        meta = service.metadata
        master = meta.namespace == "default" and meta.name == "kubernetes"
        if service.spec.cluster_ip in ("", "None") or not service.spec.ports:
            continue
        own = links and meta.namespace == namespace
        if own or (master and meta.name not in chosen):
            chosen[meta.name] = service
    variables: dict[str, str] = {}
    for name in sorted(chosen):
        variables |= _variables_of(chosen[name])
    return variables


def _variables_of(service: Service) -> dict[str, str]:
    prefix = service.metadata.name.upper().replace("-", "_")
    address = service.spec.cluster_ip
    shown = f"[{address}]" if ":" in address else address
    first = service.spec.ports[0]
    variables = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(first.port)}
    for port in service.spec.ports:
        if port.name:
            variables[f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}"] = str(port.port)
    variables[f"{prefix}_PORT"] = f"{first.protocol.lower()}://{shown}:{first.port}"
    for port in service.spec.ports:
        head = f"{prefix}_PORT_{port.port}_{port.protocol}"
        variables[head] = f"{port.protocol.lower()}://{shown}:{port.port}"
        variables |= {f"{head}_PROTO": port.protocol.lower(), f"{head}_PORT": str(port.port), f"{head}_ADDR": address}
    return variables


class PodFields(msgspec.Struct, frozen=True):
    """The facts of a pod that its containers may ask for when they start."""

    pod: Pod
    node: str
    ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    allocatable: Mapping[str, str] = {}


def field(path: str, facts: PodFields) -> str:
    """The value of a downward API ``fieldPath``.

    Raises: ConfigError when the path is not supported.
    """
    pod = facts.pod
    if match := _SUBSCRIPT.match(path):
        source = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
        return source.get(match[2], "")
    simple: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: pod.metadata.name,
        "metadata.namespace": lambda: pod.metadata.namespace,
        "metadata.uid": lambda: pod.metadata.uid,
        "metadata.labels": lambda: _lines(pod.metadata.labels),
        "metadata.annotations": lambda: _lines(pod.metadata.annotations),
        "spec.nodeName": lambda: pod.spec.node_name,
        "spec.serviceAccountName": lambda: pod.spec.service_account_name or "default",
        "status.podIP": lambda: facts.ips[0] if facts.ips else "",
        "status.podIPs": lambda: ",".join(facts.ips),
        "status.hostIP": lambda: facts.host_ips[0] if facts.host_ips else "",
        "status.hostIPs": lambda: ",".join(facts.host_ips),
    }
    if path not in simple:
        raise ConfigError("fieldRef", "fieldPath", f"{path!r} is not supported")
    return simple[path]()


def _lines(mapping: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{_escape(mapping[key])}"' for key in sorted(mapping))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource(reference: Mapping[str, Any], facts: PodFields, container: Container) -> str:
    """The value of a ``resourceFieldRef``, rounded up; the node's allocatable amount where the limit is not set."""
    name = reference.get("containerName") or container.name
    spec = facts.pod.spec
    target = next((c for c in spec.containers + spec.init_containers if c.name == name), container)
    kind, _, unit = str(reference.get("resource", "")).partition(".")
    amounts = target.resources.limits if kind == "limits" else target.resources.requests
    fallback = facts.allocatable.get(unit, "0") if kind == "limits" else target.resources.limits.get(unit, "0")
    divisor = quantity(reference.get("divisor") or "1") or Decimal(1)
    return str(math.ceil(quantity(amounts.get(unit, fallback)) / divisor))


def compile_environment(
    container: Container, facts: PodFields, services: Mapping[str, str], objects: ConfigLookup
) -> dict[str, str]:
    """All variables of a container: those of ``services``, then the container's own.

    Raises: ConfigError naming the configMap, secret or key that is missing.
    """
    variables = dict(services)
    for source in container.env_from:
        variables |= _from_source(source, facts.pod.metadata.namespace, objects)
    for variable in container.env:
        if variable.value_from:
            value = _from_reference(variable.value_from, facts, container, objects)
            if value is None:
                continue
        else:
            value = expand(variable.value, variables)
        variables[variable.name] = value
    return variables


def has_foreign_names(variables: Mapping[str, str]) -> bool:
    """Whether a variable has a name that a shell cannot use, such as ``data-1``."""
    return any(not _SHELL_NAME.match(name) for name in variables)


def _from_source(source: Mapping[str, Any], namespace: str, objects: ConfigLookup) -> dict[str, str]:
    prefix = source.get("prefix", "")
    for key, fetch, kind in (
        ("configMapRef", objects.config_map, "configmap"), ("secretRef", objects.secret, "secret"),
    ):  # fmt: skip
        if reference := source.get(key):
            data = fetch(namespace, reference.get("name", ""))
            if data is None:
                if reference.get("optional"):
                    return {}
                raise ConfigError(kind, "", f'{kind} "{reference.get("name", "")}" not found')
            named = {prefix + name: value for name, value in data.items()}
            return {name: value.decode(errors="replace") for name, value in named.items() if _VALID_NAME.match(name)}
    return {}


def _from_reference(
    reference: Mapping[str, Any], facts: PodFields, container: Container, objects: ConfigLookup
) -> str | None:
    if selector := reference.get("fieldRef"):
        return field(selector.get("fieldPath", ""), facts)
    if selector := reference.get("resourceFieldRef"):
        return resource(selector, facts, container)
    namespace = facts.pod.metadata.namespace
    if selector := reference.get("configMapKeyRef"):
        return _key(selector, objects.config_map(namespace, selector.get("name", "")), "configmap", namespace)
    if selector := reference.get("secretKeyRef"):
        return _key(selector, objects.secret(namespace, selector.get("name", "")), "secret", namespace)
    raise ConfigError("valueFrom", "", f"{', '.join(reference)} is not supported")


def _key(reference: Mapping[str, Any], data: Mapping[str, bytes] | None, kind: str, namespace: str) -> str | None:
    name, key = reference.get("name", ""), reference.get("key", "")
    if data is not None and key in data:
        return data[key].decode(errors="replace")
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(kind, "", f'{kind} "{name}" not found')
    raise ConfigError(kind, "", f"couldn't find key {key} in {kind} {namespace}/{name}")
