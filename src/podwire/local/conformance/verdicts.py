"""Compares the observed outcomes with a case file and, for failures, with the reference evaluator (pure).

The evaluator judges failures only. When the evaluator agrees with the observed outcome, the file is wrong.
When the evaluator agrees with the file, podwire's rules are wrong if they let a packet pass. A packet that did not
arrive may also be lost elsewhere, and a refusal never comes from podwire's rules, which only drop.
"""

from collections.abc import Callable, Iterable

import msgspec

from podwire.cluster.world import World
from podwire.local.conformance.casefile import Case, CaseCheck, CaseStep
from podwire.local.conformance.placing import ClusterNode, Placing
from podwire.local.conformance.stage import CasePod, Manifest, Stage
from podwire.model.meta import Object, ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.model.pod import Container, Pod, PodIP, PodSpec, PodStatus
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import evaluate

ANSWERED, ARRIVED, REFUSED, NOTHING = "answered", "arrived, and no answer came back", "refused", "nothing arrived"
"""The outcomes of a check."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A check whose outcome differs from the one that its case expects."""

    case: str
    step: int
    source: str
    target: str
    protocol: str
    port: int
    family: int
    expected: str
    observed: str
    evaluator: str
    """The verdict of the reference evaluator: allowed or blocked."""

    @property
    def whose(self) -> str:
        """The probable cause: podwire's rules, the case file, or something else."""
        passed = self.observed in (ANSWERED, ARRIVED)
        if self.evaluator == "blocked" and passed:
            return "podwire's rules are wrong"
        if self.evaluator != self.expected:
            return "the file is wrong"
        if self.observed == REFUSED:
            return "something else refused it: podwire's rules only drop"
        if self.observed == ARRIVED:
            return "the answer was lost: podwire's rules are wrong, or something else dropped it"
        return "podwire's rules are wrong, or something else lost the packet"

    def __str__(self) -> str:
        where = f"{self.case} step {self.step}: {self.source} -> {self.target} {self.protocol}/{self.port}"
        difference = f"expected {self.expected}, observed: {self.observed}"
        return f"{where} IPv{self.family}: {difference}; the evaluator says {self.evaluator}: {self.whose}"


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case; ``problem`` says why the case could not run to its end."""

    file: str
    case: str
    tags: tuple[str, ...]
    checks: int
    failures: tuple[Failure, ...] = ()
    problem: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether all checks ran and had the outcome that the file expects."""
        return not self.failures and not self.problem


def holds(check: CaseCheck, observed: str) -> bool:
    """Whether a check has the expected outcome: an answer or silence. A refusal is neither."""
    return observed == (ANSWERED if check.allowed else NOTHING)


class Judge:
    """Compares the observed outcomes of one step with its case."""

    def __init__(self, case: Case, step: CaseStep, placing: Placing, address: Callable[[CasePod, int], str]) -> None:
        """``address`` returns the address of a pod in an IP family; empty: it has none."""
        self._case, self._step = case, step
        self._placing, self._address = placing, address
        self._worlds: dict[int, World] = {}

    def failures(
        self, observed: Iterable[tuple[CaseCheck, int, str]], policy: Callable[[Manifest], Manifest]
    ) -> list[Failure]:
        """The failures among the checks; each check comes with its IP family and its observed outcome.

        ``policy`` converts a policy of the case to the policy that was applied.
        """
        return [
            self._failure(check, family, outcome, policy)
            for check, family, outcome in observed
            if not holds(check, outcome)
        ]

    def _failure(self, check: CaseCheck, family: int, outcome: str, policy: Callable[[Manifest], Manifest]) -> Failure:
        if family not in self._worlds:
            self._worlds[family] = world(
                self._step.stage, self._placing, lambda pod: self._address(pod, family), policy
            )
        evaluated = self._worlds[family]
        ends = [self.address_of(self._step.stage.pods[key], family) for key in (check.source, check.target)]
        connection = Connection(
            source=evaluated.party(ends[0]),
            destination=evaluated.party(ends[1]),
            protocol=check.protocol,
            port=check.port,
        )
        return Failure(
            case=self._case.id,
            step=self._step.number,
            source=check.source,
            target=check.target,
            protocol=check.protocol,
            port=check.port,
            family=family,
            expected=_word(allowed=check.allowed),
            observed=outcome,
            evaluator=_word(allowed=evaluate(evaluated, connection).allowed),
        )

    def address_of(self, pod: CasePod, family: int) -> str:
        """The address of a pod, empty if it has none; a pod in the host network has the address of its node."""
        if pod.host_network:
            return self._placing.node_of(pod).address(family)
        return self._address(pod, family)

    def families_of(self, check: CaseCheck) -> tuple[int, ...]:
        """The families in which a check is made: those in which both pods have an address."""
        ends = [self._step.stage.pods[key] for key in (check.source, check.target)]
        families = (check.family,) if check.family else (4, 6)
        return tuple(family for family in families if all(self.address_of(pod, family) for pod in ends))


def world(
    stage: Stage, placing: Placing, address: Callable[[CasePod], str], policy: Callable[[Manifest], Manifest]
) -> World:
    """A stage as input of the evaluator, with the pods' addresses of one IP family."""
    nodes = {node.name: node for node in placing.by_address.values()}
    labels = {
        placing.by_address[node.address].name: node.labels for node in stage.nodes if node.address in placing.by_address
    }
    policies = (msgspec.convert(policy(manifest), NetworkPolicy) for manifest in stage.policies.values())
    cluster_policies = (
        msgspec.convert(policy(manifest), ClusterNetworkPolicy) for manifest in stage.cluster_policies.values()
    )
    return World(
        pods=tuple(_pod(pod, placing, address) for pod in stage.pods.values()),
        namespaces=tuple(
            Object(metadata=ObjectMeta(name=name, labels=labels)) for name, labels in stage.namespaces.items()
        ),
        nodes=tuple(_node(node, labels.get(name, {})) for name, node in nodes.items()),
        policies=tuple(policies),
        cluster_policies=tuple(cluster_policies),
    )


def _pod(pod: CasePod, placing: Placing, address: Callable[[CasePod], str]) -> Pod:
    own = "" if pod.host_network else address(pod)
    ips = (PodIP(ip=own),) if own else ()
    return Pod(
        metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, labels=pod.labels),
        spec=PodSpec(
            node_name=placing.node_of(pod).name,
            host_network=pod.host_network,
            containers=(Container(name="main", ports=pod.ports),),
        ),
        status=PodStatus(phase="Running", pod_ip=ips[0].ip if ips else "", pod_ips=ips),
    )


def _node(node: ClusterNode, labels: dict[str, str]) -> Node:
    addresses = tuple(NodeAddress(type="InternalIP", address=text) for text in node.addresses)
    return Node(
        metadata=ObjectMeta(name=node.name, labels=node.labels | labels), status=NodeStatus(addresses=addresses)
    )


def _word(*, allowed: bool) -> str:
    return "allowed" if allowed else "blocked"
