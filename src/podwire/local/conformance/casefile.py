"""Reads case files: the expected results of conformance checks (pure).

A file is JSON or YAML::

    format: netpol-cases/1            # or cnp-cases/1; both mean the same
    initial:                          # for all cases; a case may have its own
      namespaces: {x: {team: a}}
      pods:
        - {namespace: x, name: a, labels: {pod: a}, ip: 10.244.0.11, ports: [{containerPort: 80, protocol: TCP}]}
    cases:
      - id: deny-all
        tags: [ingress]
        steps:
          - actions: [{op: create_policy, policy: {apiVersion: networking.k8s.io/v1, ...}}]
            pods: [x/a, x/b]                        # the columns of the table
            expected: {TCP/80: {x/a: ".X", x/b: "X."}}  # . allowed, X blocked, x not checked
          - {actions: [], from: x/a, to: x/b, protocol: TCP, port: 80, allowed: true}   # one check

For IPv6 checks, IPv4 addresses and ranges are embedded in IPv6 ones; ``ipv6`` gives a pod an address of its own. With
``translate: false``, for the file or a case, nothing is translated: a pod without ``ipv6`` has no IPv6 address, and
policies keep their ranges. ``TCP/80/IPv6`` and ``family: 6`` are checked in one family. Unknown fields are ignored. A
file with a mistake is refused before any case runs; the error names the file, the case, the field and the expected
value.
"""

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.local.conformance.stage import (
    CLUSTER_POLICY,
    NETWORK_POLICY,
    OPS,
    Action,
    CaseNode,
    CasePod,
    Stage,
    follow,
)
from podwire.model.document import refusal
from podwire.model.pod import ContainerPort
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy

FORMATS = ("netpol-cases/1", "cnp-cases/1")
PROTOCOLS = ("TCP", "UDP", "SCTP")
_FAMILIES = {"IPv4": 4, "IPv6": 6}
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", bool: "true or false"}


class CaseCheck(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One connection between two pods."""

    source: str
    target: str
    protocol: str
    port: int
    allowed: bool
    family: int = 0
    """4 or 6; 0: in each family in which both pods have an address."""


class CaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """Actions, then checks; ``stage`` has the objects after the actions."""

    number: int
    """The index in the case; following steps without actions are merged into this step."""
    actions: tuple[Action, ...]
    checks: tuple[CaseCheck, ...]
    stage: Stage


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The initial stage of a case and its steps."""

    id: str
    description: str
    tags: tuple[str, ...]
    initial: Stage
    steps: tuple[CaseStep, ...]


class CaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of a file."""

    source: str
    cases: tuple[Case, ...]


def parse(text: bytes, source: str) -> CaseFile:
    """Parses a case file; ``source`` is the name of the file, JSON when it ends in ``.json``, otherwise YAML.

    Raises: ConfigError.
    """
    document = _document(text, source)
    top = _CaseObject(source, "", document)
    if top.get("format", str) not in FORMATS:
        raise top.error("format", f"expected {' or '.join(FORMATS)}, found {document['format']!r}")
    if document.get("family", "ipv4") != "ipv4":
        raise top.error("family", f"expected ipv4, found {document['family']!r}")
    translate = top.get("translate", bool, default=True)
    shared = _stage(top.object("initial"), translate=translate) if "initial" in document else None
    cases: list[Case] = []
    for number, case_object in enumerate(top.objects("cases")):
        name = case_object.get("id", str)
        if any(case.id == name for case in cases):
            raise case_object.error("id", f"expected an id of its own, found {name!r} a second time")
        body = {"translate": translate} | case_object.body
        cases.append(_case(_CaseObject(f"{source}: case {name}", "", body), shared, number))
    if not cases:
        raise top.error("cases", "expected at least one case")
    return CaseFile(source=source, cases=tuple(cases))


def _document(text: bytes, source: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text) if source.endswith(".json") else yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as failure:
        line = f":{failure.problem_mark.line + 1}" if failure.problem_mark else ""
        raise ConfigError(f"{source}{line}", "", f"not YAML: {failure.problem}") from failure
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as failure:
        kind = "JSON" if source.endswith(".json") else "YAML"
        raise ConfigError(source, "", f"not {kind}: {' '.join(str(failure).split())}") from failure
    if not isinstance(value, dict):
        raise ConfigError(source, "", "expected an object with format and cases")
    _check_names(value, source, "")
    return value


def _check_names(value: Any, source: str, path: str) -> None:
    """Refuses field names that are not strings, which YAML allows."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            _check_names(item, source, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ConfigError(source, path, f"expected a string as the name of a field, found {name!r}")
            _check_names(item, source, f"{path}.{name}" if path else name)


class _CaseObject:
    """An object of the file, with its path in the file."""

    def __init__(self, source: str, path: str, body: dict[str, Any]) -> None:
        self.source, self.path, self.body = source, path, body

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(self.source, self.at(name), problem)

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """The value of a field, which must have the type ``kind``; without a ``default`` the field is required."""
        value = self.body.get(name)
        if value is None:
            if default is None:
                raise self.error(name, f"expected {_KINDS[kind]}, found nothing")
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(name, f"expected {_KINDS[kind]}, found {value!r}")
        return value

    def object(self, name: str) -> "_CaseObject":
        return _CaseObject(self.source, self.at(name), self.get(name, dict))

    def objects(self, name: str, *, required: bool = True) -> "Iterator[_CaseObject]":
        for number, item in enumerate(self.get(name, list, None if required else [])):
            path = f"{self.at(name)}[{number}]"
            if not isinstance(item, dict):
                raise ConfigError(self.source, path, f"expected an object, found {item!r}")
            yield _CaseObject(self.source, path, item)

    def labels(self, name: str, *, required: bool = True) -> dict[str, str]:
        labels: dict[str, str] = self.get(name, dict, None if required else {})
        for key, value in labels.items():
            if not isinstance(value, str):
                raise self.error(f"{name}[{key}]", f"expected a text, found {value!r}")
        return labels

    def address(self, name: str) -> str:
        text: str = self.get(name, str)
        try:
            return str(IPv4Address(text))
        except AddressValueError as failure:
            raise self.error(name, f"expected an IPv4 address, found {text!r}") from failure

    def ipv6(self, name: str) -> str:
        text: str = self.get(name, str, "")
        try:
            return str(IPv6Address(text)) if text else ""
        except AddressValueError as failure:
            raise self.error(name, f"expected an IPv6 address, found {text!r}") from failure

    def port(self, name: str) -> int:
        number: int = self.get(name, int)
        if not 1 <= number <= 65535:
            raise self.error(name, f"expected 1 to 65535, found {number}")
        return number

    def protocol(self, name: str) -> str:
        text: str = self.get(name, str, "TCP")
        if text.upper() not in PROTOCOLS:
            raise self.error(name, f"expected {', '.join(PROTOCOLS)}, found {text!r}")
        return text.upper()


def _stage(case_object: _CaseObject, *, translate: bool) -> Stage:
    names = case_object.object("namespaces")
    namespaces = {name: names.labels(name) for name in names.body}
    nodes = tuple(
        CaseNode(address=node.address("ip"), labels=node.labels("labels", required=False))
        for node in case_object.objects("nodes", required=False)
    )
    stage = Stage(namespaces=namespaces, nodes=nodes, translate=translate)
    for pod in case_object.objects("pods"):
        case_pod = _pod(pod, "name", translate=translate)
        action = Action(op="create_pod", namespace=case_pod.namespace, name=case_pod.name, pod=case_pod)
        try:
            stage = follow(stage, action)
        except ValueError as problem:
            raise ConfigError(pod.source, pod.path, str(problem)) from problem
    return stage


def _pod(case_object: _CaseObject, name: str, *, translate: bool) -> CasePod:
    ports = tuple(
        ContainerPort(
            container_port=port.port("containerPort"),
            protocol=port.protocol("protocol"),
            name=port.get("name", str, ""),
        )
        for port in case_object.objects("ports", required=False)
    )
    return CasePod(
        namespace=case_object.get("namespace", str),
        name=case_object.get(name, str),
        address=case_object.address("ip"),
        ipv6=case_object.ipv6("ipv6"),
        translate=translate,
        labels=case_object.labels("labels", required=False),
        ports=ports,
        host_network=case_object.get("hostNetwork", bool, default=False),
        node_address=case_object.get("node_ip", str, ""),
    )


def _case(case_object: _CaseObject, shared: Stage | None, number: int) -> Case:
    if "initial" not in case_object.body and shared is None:
        raise case_object.error("initial", "expected an object, here or for the whole file")
    translate = case_object.get("translate", bool)
    own = "initial" in case_object.body
    initial = _stage(case_object.object("initial"), translate=translate) if own else shared
    assert initial is not None
    if initial.translate != translate:
        pods = {key: replace(pod, translate=translate) for key, pod in initial.pods.items()}
        initial = replace(initial, pods=pods, translate=translate)
    tags = case_object.get(
        "tags", list, case_object.body.get("features") if isinstance(case_object.body.get("features"), list) else []
    )
    stage, steps = initial, list[CaseStep]()
    for index, step_object in enumerate(case_object.objects("steps")):
        step = _step(step_object, index, stage)
        stage = step.stage
        if steps and not step.actions:
            steps[-1] = replace(steps[-1], checks=steps[-1].checks + step.checks)
        else:
            steps.append(step)
    if not steps:
        raise case_object.error("steps", f"expected at least one step in case {number}")
    return Case(
        id=case_object.get("id", str),
        description=case_object.get("description", str, ""),
        tags=tuple(str(tag) for tag in tags),
        initial=initial,
        steps=tuple(steps),
    )


def _step(case_object: _CaseObject, number: int, stage: Stage) -> CaseStep:
    actions = []
    for action_object in case_object.objects("actions", required=False):
        action = _action(action_object, translate=stage.translate)
        try:
            stage = follow(stage, action)
        except ValueError as problem:
            raise ConfigError(action_object.source, action_object.path, str(problem)) from problem
        actions.append(action)
    checks = tuple(_table(case_object, stage)) if "expected" in case_object.body else (_single(case_object, stage),)
    return CaseStep(number=number, actions=tuple(actions), checks=checks, stage=stage)


def _action(case_object: _CaseObject, *, translate: bool) -> Action:
    op = case_object.get("op", str)
    if op not in OPS:
        raise case_object.error("op", f"expected one of {', '.join(OPS)}, found {op!r}")
    labels = case_object.labels("labels", required="labels" in OPS[op])
    if "policy" in OPS[op]:
        policy = case_object.object("policy")
        namespace, name = _policy(policy, cluster="cluster" in op)
        return Action(op=op, namespace=namespace, name=name, policy=policy.body)
    pod = _pod(case_object, "pod", translate=translate) if op == "create_pod" else None
    name = (
        case_object.get("pod", str) if "pod" in OPS[op] else case_object.get("name", str) if "name" in OPS[op] else ""
    )
    namespace = case_object.get("namespace", str) if "namespace" in OPS[op] else ""
    return Action(op=op, namespace=namespace, name=name, labels=labels, pod=pod)


def _policy(case_object: _CaseObject, *, cluster: bool) -> tuple[str, str]:
    """The namespace and name of a policy, once podwire has checked that it can read the policy."""
    version, kind = CLUSTER_POLICY if cluster else NETWORK_POLICY
    for field, expected in (("apiVersion", version), ("kind", kind)):
        if case_object.get(field, str) != expected:
            raise case_object.error(field, f"expected {expected}, found {case_object.body[field]!r}")
    meta = case_object.object("metadata")
    read: type[ClusterNetworkPolicy | NetworkPolicy] = ClusterNetworkPolicy if cluster else NetworkPolicy
    try:
        msgspec.convert(case_object.body, read)
    except msgspec.ValidationError as failure:
        path, problem = refusal(failure, read)
        raise ConfigError(case_object.source, case_object.at(path), problem) from failure
    return "" if cluster else meta.get("namespace", str), meta.get("name", str)


def _table(case_object: _CaseObject, stage: Stage) -> Iterator[CaseCheck]:
    """The checks of a table: each row is a source, each column a target in ``pods``."""
    columns = case_object.get("pods", list)
    for number, pod in enumerate(columns):
        if not isinstance(pod, str) or pod not in stage.pods:
            raise case_object.error(f"pods[{number}]", f"expected a pod that exists at this step, found {pod!r}")
    tables = case_object.object("expected")
    for key in tables.body:
        protocol, port, family = _port_of(tables, key)
        rows = tables.object(key)
        for source in rows.body:
            row = rows.get(source, str)
            if source not in stage.pods:
                raise rows.error(source, "expected a pod that exists at this step")
            _check_family(rows, source, family, stage.pods[source])
            if len(row) != len(columns) or set(row) - set(".Xx"):
                raise rows.error(source, f"expected {len(columns)} characters of . X x, found {row!r}")
            for target, mark in zip(columns, row, strict=True):
                if mark != "x":
                    _check_family(rows, source, family, stage.pods[target])
                    yield CaseCheck(
                        source=source,
                        target=target,
                        protocol=protocol,
                        port=port,
                        allowed=mark == ".",
                        family=family,
                    )


def _check_family(where: _CaseObject, name: str, family: int, pod: CasePod) -> None:
    """Refuses a check in IPv6 of a pod that has no address in it."""
    if family == 6 and not (pod.ipv6 or pod.translate or pod.host_network):
        raise where.error(name, f"expected pods with an ipv6 address, found {pod.key} without one")


def _port_of(tables: _CaseObject, key: str) -> tuple[str, int, int]:
    """The protocol, the port and the family (0: both) of a key of a table."""
    protocol, port, family = (*key.split("/", 2), "", "")[:3]
    if protocol not in PROTOCOLS or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise tables.error(key, "expected a protocol and a port such as TCP/80")
    if family and family not in _FAMILIES:
        raise tables.error(key, "expected a family behind the port, as in TCP/80/IPv6")
    return protocol, int(port), _FAMILIES.get(family, 0)


def _single(case_object: _CaseObject, stage: Stage) -> CaseCheck:
    source, target = case_object.get("from", str), case_object.get("to", str)
    if source not in stage.pods:
        raise case_object.error("from", f"expected a pod that exists at this step, found {source!r}")
    if target not in stage.pods:
        raise case_object.error("to", f"expected a pod that exists at this step, found {target!r}")
    family = case_object.get("family", int, 0)
    if family not in (0, *_FAMILIES.values()):
        raise case_object.error("family", f"expected 4 or 6, found {family}")
    for field, key in (("from", source), ("to", target)):
        _check_family(case_object, field, family, stage.pods[key])
    return CaseCheck(
        source=source,
        target=target,
        protocol=case_object.protocol("protocol"),
        port=case_object.port("port"),
        allowed=case_object.get("allowed", bool),
        family=family,
    )
