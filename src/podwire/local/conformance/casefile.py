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
            pods: [x/a, x/b]                        # the columns of what is expected
            expected: {TCP/80: {x/a: ".X", x/b: "X."}}  # . allowed, X blocked, x not to be checked
          - {actions: [], from: x/a, to: x/b, protocol: TCP, port: 80, allowed: true}   # one check

Addresses are IPv4; for IPv6 checks they are embedded in IPv6 addresses. Unknown fields are ignored. A mistake is
refused before anything runs; the error names the file, the case, the field and the expectation.
"""

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
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
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", bool: "true or false"}


class Check(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One connection between two pods."""

    source: str
    target: str
    protocol: str
    port: int
    allowed: bool


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Actions, then checks; ``stage`` has the objects after the actions."""

    number: int
    """The index in the case; following steps without actions are merged into this step."""
    actions: tuple[Action, ...]
    checks: tuple[Check, ...]
    stage: Stage


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The initial stage of a case and its steps."""

    id: str
    description: str
    tags: tuple[str, ...]
    initial: Stage
    steps: tuple[Step, ...]


class CaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of a file."""

    source: str
    cases: tuple[Case, ...]


def parse(text: bytes, source: str) -> CaseFile:
    """Parses a case file; ``source`` is the name of the file, JSON when it ends in ``.json``, otherwise YAML.

    Raises: ConfigError.
    """
    document = _document(text, source)
    top = _Object(source, "", document)
    if top.get("format", str) not in FORMATS:
        raise top.wrong("format", f"expected {' or '.join(FORMATS)}, found {document['format']!r}")
    if document.get("family", "ipv4") != "ipv4":
        raise top.wrong("family", f"expected ipv4, found {document['family']!r}")
    shared = _stage(top.object("initial")) if "initial" in document else None
    cases: list[Case] = []
    for number, given in enumerate(top.objects("cases")):
        name = given.get("id", str)
        if any(case.id == name for case in cases):
            raise given.wrong("id", f"expected an id of its own, found {name!r} again")
        cases.append(_case(_Object(f"{source}: case {name}", "", given.body), shared, number))
    if not cases:
        raise top.wrong("cases", "expected one case at least")
    return CaseFile(source=source, cases=tuple(cases))


def _document(text: bytes, source: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text) if source.endswith(".json") else yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as failure:
        line = f":{failure.problem_mark.line + 1}" if failure.problem_mark else ""
        raise ConfigError(f"{source}{line}", "", f"not YAML: {failure.problem}") from failure
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as failure:
        kind = "JSON" if source.endswith(".json") else "YAML"
        raise ConfigError(source, "", f"not {kind}: {' '.join(str(failure).split())}") from failure
    if not isinstance(found, dict):
        raise ConfigError(source, "", "expected an object with format and cases")
    _check_names(found, source, "")
    return found


def _check_names(found: Any, source: str, path: str) -> None:
    """Refuses field names that are not strings, which YAML allows."""
    if isinstance(found, list):
        for number, item in enumerate(found):
            _check_names(item, source, f"{path}[{number}]")
    elif isinstance(found, dict):
        for name, item in found.items():
            if not isinstance(name, str):
                raise ConfigError(source, path, f"expected a string as the name of a field, found {name!r}")
            _check_names(item, source, f"{path}.{name}" if path else name)


class _Object:
    """An object of the file, and its path there."""

    def __init__(self, source: str, path: str, body: dict[str, Any]) -> None:
        self.source, self.path, self.body = source, path, body

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, problem: str) -> ConfigError:
        return ConfigError(self.source, self.at(name), problem)

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """The value of a field, which must have the type ``kind``; without a ``default`` the field is required."""
        found = self.body.get(name)
        if found is None:
            if default is None:
                raise self.wrong(name, f"expected {_KINDS[kind]}, found nothing")
            return default
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise self.wrong(name, f"expected {_KINDS[kind]}, found {found!r}")
        return found

    def object(self, name: str) -> "_Object":
        return _Object(self.source, self.at(name), self.get(name, dict))

    def objects(self, name: str, *, needed: bool = True) -> "Iterator[_Object]":
        for number, item in enumerate(self.get(name, list, None if needed else [])):
            path = f"{self.at(name)}[{number}]"
            if not isinstance(item, dict):
                raise ConfigError(self.source, path, f"expected an object, found {item!r}")
            yield _Object(self.source, path, item)

    def labels(self, name: str, *, needed: bool = True) -> dict[str, str]:
        found: dict[str, str] = self.get(name, dict, None if needed else {})
        for key, value in found.items():
            if not isinstance(value, str):
                raise self.wrong(f"{name}[{key}]", f"expected a text, found {value!r}")
        return found

    def address(self, name: str) -> str:
        text: str = self.get(name, str)
        try:
            return str(IPv4Address(text))
        except AddressValueError as failure:
            raise self.wrong(name, f"expected an IPv4 address, found {text!r}") from failure

    def port(self, name: str) -> int:
        number: int = self.get(name, int)
        if not 1 <= number <= 65535:
            raise self.wrong(name, f"expected 1 to 65535, found {number}")
        return number

    def protocol(self, name: str) -> str:
        word: str = self.get(name, str, "TCP")
        if word.upper() not in PROTOCOLS:
            raise self.wrong(name, f"expected {', '.join(PROTOCOLS)}, found {word!r}")
        return word.upper()


def _stage(given: _Object) -> Stage:
    names = given.object("namespaces")
    namespaces = {name: names.labels(name) for name in names.body}
    nodes = tuple(
        CaseNode(address=node.address("ip"), labels=node.labels("labels", needed=False))
        for node in given.objects("nodes", needed=False)
    )
    stage = Stage(namespaces=namespaces, nodes=nodes)
    for pod in given.objects("pods"):
        one = _pod(pod, "name")
        action = Action(op="create_pod", namespace=one.namespace, name=one.name, pod=one)
        try:
            stage = follow(stage, action)
        except ValueError as problem:
            raise ConfigError(pod.source, pod.path, str(problem)) from problem
    return stage


def _pod(given: _Object, name: str) -> CasePod:
    ports = tuple(
        ContainerPort(
            container_port=port.port("containerPort"),
            protocol=port.protocol("protocol"),
            name=port.get("name", str, ""),
        )
        for port in given.objects("ports", needed=False)
    )
    return CasePod(
        namespace=given.get("namespace", str),
        name=given.get(name, str),
        address=given.address("ip"),
        labels=given.labels("labels", needed=False),
        ports=ports,
        host_network=given.get("hostNetwork", bool, default=False),
        node_address=given.get("node_ip", str, ""),
    )


def _case(given: _Object, shared: Stage | None, number: int) -> Case:
    if "initial" not in given.body and shared is None:
        raise given.wrong("initial", "expected an object, here or for the whole file")
    initial = _stage(given.object("initial")) if "initial" in given.body else shared
    assert initial is not None
    tags = given.get("tags", list, given.body.get("features") if isinstance(given.body.get("features"), list) else [])
    stage, steps = initial, list[Step]()
    for place, one in enumerate(given.objects("steps")):
        step = _step(one, place, stage)
        stage = step.stage
        if steps and not step.actions:
            steps[-1] = replace(steps[-1], checks=steps[-1].checks + step.checks)
        else:
            steps.append(step)
    if not steps:
        raise given.wrong("steps", f"expected one step at least in case {number}")
    return Case(
        id=given.get("id", str),
        description=given.get("description", str, ""),
        tags=tuple(str(tag) for tag in tags),
        initial=initial,
        steps=tuple(steps),
    )


def _step(given: _Object, number: int, stage: Stage) -> Step:
    actions = []
    for one in given.objects("actions", needed=False):
        action = _action(one)
        try:
            stage = follow(stage, action)
        except ValueError as problem:
            raise ConfigError(one.source, one.path, str(problem)) from problem
        actions.append(action)
    checks = tuple(_table(given, stage)) if "expected" in given.body else (_single(given, stage),)
    return Step(number=number, actions=tuple(actions), checks=checks, stage=stage)


def _action(given: _Object) -> Action:
    op = given.get("op", str)
    if op not in OPS:
        raise given.wrong("op", f"expected one of {', '.join(OPS)}, found {op!r}")
    labels = given.labels("labels", needed="labels" in OPS[op])
    if "policy" in OPS[op]:
        policy = given.object("policy")
        namespace, name = _policy(policy, cluster="cluster" in op)
        return Action(op=op, namespace=namespace, name=name, policy=policy.body)
    pod = _pod(given, "pod") if op == "create_pod" else None
    name = given.get("pod", str) if "pod" in OPS[op] else given.get("name", str) if "name" in OPS[op] else ""
    namespace = given.get("namespace", str) if "namespace" in OPS[op] else ""
    return Action(op=op, namespace=namespace, name=name, labels=labels, pod=pod)


def _policy(given: _Object, *, cluster: bool) -> tuple[str, str]:
    """The namespace and name of a policy, once podwire has checked that it can read the policy."""
    version, kind = CLUSTER_POLICY if cluster else NETWORK_POLICY
    for field, word in (("apiVersion", version), ("kind", kind)):
        if given.get(field, str) != word:
            raise given.wrong(field, f"expected {word}, found {given.body[field]!r}")
    meta = given.object("metadata")
    read: type[ClusterNetworkPolicy | NetworkPolicy] = ClusterNetworkPolicy if cluster else NetworkPolicy
    try:
        msgspec.convert(given.body, read)
    except msgspec.ValidationError as failure:
        path, problem = refusal(failure, read)
        raise ConfigError(given.source, given.at(path), problem) from failure
    return "" if cluster else meta.get("namespace", str), meta.get("name", str)


def _table(given: _Object, stage: Stage) -> Iterator[Check]:
    """The checks of a table: each row is a source, each column a target in ``pods``."""
    columns = given.get("pods", list)
    for number, pod in enumerate(columns):
        if not isinstance(pod, str) or pod not in stage.pods:
            raise given.wrong(f"pods[{number}]", f"expected a pod that is there by then, found {pod!r}")
    tables = given.object("expected")
    for key in tables.body:
        protocol, _, port = key.partition("/")
        if protocol not in PROTOCOLS or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise tables.wrong(key, "expected a protocol and a port such as TCP/80")
        rows = tables.object(key)
        for source in rows.body:
            row = rows.get(source, str)
            if source not in stage.pods:
                raise rows.wrong(source, "expected a pod that is there by then")
            if len(row) != len(columns) or set(row) - set(".Xx"):
                raise rows.wrong(source, f"expected {len(columns)} characters of . X x, found {row!r}")
            for target, mark in zip(columns, row, strict=True):
                if mark != "x":
                    yield Check(source=source, target=target, protocol=protocol, port=int(port), allowed=mark == ".")


def _single(given: _Object, stage: Stage) -> Check:
    source, target = given.get("from", str), given.get("to", str)
    if source not in stage.pods:
        raise given.wrong("from", f"expected a pod that is there by then, found {source!r}")
    if target not in stage.pods:
        raise given.wrong("to", f"expected a pod that is there by then, found {target!r}")
    return Check(
        source=source,
        target=target,
        protocol=given.protocol("protocol"),
        port=given.port("port"),
        allowed=given.get("allowed", bool),
    )
