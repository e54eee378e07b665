"""Findings about rules that never decide, because other rules cover them (pure).

NetworkPolicies add up: a rule that other rules cover is only superfluous. In a tier of cluster policies the first
matching rule decides, so a rule after rules that cover it never decides; and a NetworkPolicy cannot allow what an Admin
policy denies. Policies in audit never cover policies in force; findings about them apply when all are in force.
"""

from collections.abc import Iterable, Iterator

from podwire.policy.check import coverage
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import NOTE, WARNING, Finding
from podwire.policy.check.outline import EGRESS, INGRESS, PolicyOutline, RuleOutline
from podwire.policy.check.phrases import first_names
from podwire.policy.check.scope import Term, Terms

PolicyRule = tuple[PolicyOutline, RuleOutline]


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about the rules of all policies."""
    cluster = {tier: in_order(index, tier) for tier in ("Admin", "Baseline")}
    for policies in cluster.values():
        yield from _never_reached(policies)
    spaces: dict[str, list[PolicyOutline]] = {}
    for policy in index.policies:
        if policy.kind == "NetworkPolicy":
            spaces.setdefault(policy.meta.namespace, []).append(policy)
    for policies in spaces.values():
        yield from _covered(policies)
        for policy in policies:
            yield from _overruled(policy, cluster["Admin"])


def in_order(index: ClusterIndex, tier: str) -> list[PolicyOutline]:
    """The cluster policies of a tier, in the order of evaluation."""
    policies = [policy for policy in index.policies if policy.tier == tier]
    return sorted(policies, key=lambda policy: (policy.priority, policy.key))


def _never_reached(policies: list[PolicyOutline]) -> Iterator[Finding]:
    earlier: dict[str, list[PolicyRule]] = {INGRESS: [], EGRESS: []}
    for policy in policies:
        for rule in policy.rules:
            before = [
                owned
                for owned in earlier[rule.direction]
                if policy.heeds(owned[0]) and policy.scope.within(owned[0].scope)
            ]
            covering = _first_covering(policy, rule, before)
            if covering:
                same = all(owned[1].action == rule.action for owned in covering)
                names = _names(policy, covering)
                text = f"it never decides: {names} {_decides(covering)} the same connections before"
                yield policy.finding("never-reached", rule.path, text, NOTE if same else WARNING)
            earlier[rule.direction].append((policy, rule))


def _decides(covering: list[PolicyRule]) -> str:
    actions = sorted({owned[1].action for owned in covering})
    verbs = {"Accept": "accepts", "Deny": "denies", "Pass": "passes on"}
    return verbs[actions[0]] if len(covering) == 1 else "decide"


def _first_covering(policy: PolicyOutline, rule: RuleOutline, rules: Iterable[PolicyRule]) -> list[PolicyRule]:
    """The first of the other rules that cover a rule; empty: it is not covered."""
    candidates = [owned for owned in rules if owned[1] is not rule]
    covering = coverage.covered_by(rule, (owned[1] for owned in candidates))
    return [owned for owned in candidates if any(owned[1] is rule_covering for rule_covering in covering)]


def _names(policy: PolicyOutline, covering: list[PolicyRule]) -> str:
    return first_names(rule.path if owner is policy else f"{rule.path} of {owner.key}" for owner, rule in covering)


def _covered(policies: list[PolicyOutline]) -> Iterator[Finding]:
    """Findings about superfluous rules; of two rules that cover each other, the later one is superfluous."""
    by_subject: dict[Terms, _RuleIndex] = {}
    for policy in policies:
        by_subject.setdefault(policy.scope.pods, _RuleIndex()).add(policy)
    gone: set[int] = set()
    for policy in reversed(policies):
        own = policy.scope.pods
        wider = [rules for subject, rules in by_subject.items() if subject <= own]
        for rule in reversed(policy.rules):
            near = (owned for rules in wider for owned in rules.near(rule) if policy.heeds(owned[0]))
            remaining_rules = [owned for owned in near if id(owned[1]) not in gone]
            covering = _first_covering(policy, rule, remaining_rules)
            if covering:
                gone.add(id(rule))
                text = f"{_names(policy, covering)} {'allows' if len(covering) == 1 else 'allow'} the same connections"
                yield policy.finding("covered", rule.path, text)


class _RuleIndex:
    """Rules of policies, indexed so that the rules that may cover parts of another rule are found.

    A peer can only be within a selector whose terms it has. So a selector is indexed by one of its terms. Selectors
    without terms, and peers that are not pods, are compared with every rule.
    """

    def __init__(self) -> None:
        self._rules: dict[tuple[str, Term | None], dict[int, PolicyRule]] = {}
        self._number = 0

    def add(self, policy: PolicyOutline) -> None:
        """Adds the rules of a policy."""
        for rule in policy.rules:
            self._number += 1
            for peer in rule.peers:
                term = min(peer.scope.pods, key=repr) if peer.pods is not None and peer.scope.pods else None
                self._rules.setdefault((rule.direction, term), {})[self._number] = policy, rule
            if rule.everyone or not rule.peers:
                self._rules.setdefault((rule.direction, None), {})[self._number] = policy, rule

    def near(self, rule: RuleOutline) -> list[PolicyRule]:
        """The rules that may cover parts of a rule, in the order in which they were added."""
        terms: set[Term | None] = {None}
        terms.update(term for peer in rule.peers for term in peer.scope.pods)
        rules: dict[int, PolicyRule] = {}
        for term in terms:
            rules |= self._rules.get((rule.direction, term), {})
        return [rules[number] for number in sorted(rules)]


def _overruled(policy: PolicyOutline, admin: list[PolicyOutline]) -> Iterator[Finding]:
    """Findings about rules that allow only what the Admin tier denies before, for all pods of the policy."""
    denying = {direction: _denied_first(policy, admin, direction) for direction in (INGRESS, EGRESS)}
    for rule in policy.rules:
        covering = _first_covering(policy, rule, denying[rule.direction])
        if covering:
            denies = "denies" if len(covering) == 1 else "deny"
            text = f"{_names(policy, covering)} of the Admin tier {denies} the same connections: this allows nothing"
            yield policy.finding("overruled", rule.path, text)


def _denied_first(policy: PolicyOutline, admin: list[PolicyOutline], direction: str) -> list[PolicyRule]:
    """The deny rules for all pods of a policy, up to the first rule that may allow or pass a connection."""
    denying: list[PolicyRule] = []
    for admin_policy in filter(policy.heeds, admin):
        selects_all = policy.scope.within(admin_policy.scope)
        for rule in admin_policy.of(direction):
            if rule.action != "Deny":
                return denying
            if selects_all:
                denying.append((admin_policy, rule))
    return denying
