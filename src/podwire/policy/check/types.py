"""Findings about policyTypes, sections and empty lists that do not do what they seem to (pure).

Some mistakes only show in the manifest, because the API server fills in ``policyTypes`` and removes empty lists.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.model.meta import key_of
from podwire.model.policy import NetworkPolicy
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import EGRESS, INGRESS, PolicyOutline

_SECTIONS = ((INGRESS, "ingress", "from"), (EGRESS, "egress", "to"))


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about the types and the lists of rules of all policies."""
    policies = {key_of(policy.metadata): policy for policy in index.world.policies}
    for policy in index.policies:
        yield from _every(policy)
        if policy.kind == "NetworkPolicy":
            yield from _ignored(policy, policies[policy.key])
            yield from _written(policy, index.details.written.get(policy.name, {}).get("spec") or {})
        elif not policy.rules:
            text = "it has no rules, so it changes nothing: a cluster policy without rules isolates no pod"
            yield policy.finding("no-rules", "spec", text)


def _every(policy: PolicyOutline) -> Iterator[Finding]:
    for rule in policy.rules:
        if not rule.known:
            does = "it matches nothing" if rule.action == "Accept" else "it denies everything in its direction"
            text = f"it has a peer or a port of a kind that podwire does not know, so {does}"
            yield policy.finding("unknown-kind", rule.path, text)
        elif rule.everyone and not rule.ports and policy.kind == "NetworkPolicy":
            peers = "from every source" if rule.direction == INGRESS else "to every destination"
            rest = ""
            if len(policy.of(rule.direction)) > 1:
                rest = "; the other rules of this direction have no effect"
            yield policy.finding("allows-all", rule.path, f"it allows everything {peers}, on every port{rest}")


def _ignored(policy: PolicyOutline, network_policy: NetworkPolicy) -> Iterator[Finding]:
    for direction, section, _ in _SECTIONS:
        rules = network_policy.spec.ingress if direction == INGRESS else network_policy.spec.egress
        if rules and direction not in policy.types:
            text = (
                f"it has no effect, because policyTypes does not name {direction}. "
                f"Add {direction} to policyTypes, or remove the section"
            )
            yield policy.finding("section-ignored", f"spec.{section}", text)


def _written(policy: PolicyOutline, spec: Mapping[str, Any]) -> Iterator[Finding]:
    types = spec.get("policyTypes")
    if not types and spec.get("egress") and not spec.get("ingress") and "ingress" not in spec:
        text = (
            "without policyTypes this policy isolates for ingress too: nothing can connect to the pods any more. Write "
            "policyTypes: [Egress], or [Ingress, Egress] if you mean both"
        )
        yield policy.finding("isolates-ingress-too", "spec.egress", text)
    for direction, section, peers_field in _SECTIONS:
        rules = spec.get(section)
        if rules == [] and direction not in policy.types:
            text = (
                f"it isolates no pod: an empty list counts as absent, and policyTypes does not name {direction}. Add "
                f"{direction} to policyTypes"
            )
            yield policy.finding("does-not-isolate", f"spec.{section}", text)
        for place, rule in enumerate(rules or () if direction in policy.types else ()):
            for field in (peers_field, "ports"):
                if isinstance(rule, dict) and rule.get(field) == []:
                    text = f"an empty list restricts nothing: the rule is for {_all(field, direction)}"
                    yield policy.finding("empty-list-allows-all", f"spec.{section}[{place}].{field}", text)


def _all(field: str, direction: str) -> str:
    if field == "ports":
        return "all ports and protocols. To allow none, remove the rule"
    peers = "every source" if direction == INGRESS else "every destination"
    return f"{peers}. To allow none, remove the rule"
