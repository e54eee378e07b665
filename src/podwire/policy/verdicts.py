"""Which rule of which policy a packet hits, the same in every data plane, and whether the packet is logged (pure).

A data plane keeps one object in the kernel for each :class:`RuleHit`: its counter, and the log prefix that leads back
to the rule.
"""

import msgspec

from podwire.policy.annotations import ALL, DROPS
from podwire.policy.ports import PortTable, Ruling
from podwire.policy.profile import ProfileKey
from podwire.policy.settings import LogSettings

BORROWED, UNKNOWN, NOBODY, TUNNEL = "podwire-borrowed", "podwire-unknown", "podwire-nobody", "podwire-tunnel"
APART = {
    BORROWED: "the packet came from a pod's device with an address that is not that pod's",
    UNKNOWN: "the source is an address of this node's pods, and the packet came from no known pod's device",
    NOBODY: "the destination is an address of this node's pods, and no known pod has it",
    TUNNEL: "pods may send encapsulated packets only to pods (policy.encapsulation)",
}
"""Why packets are dropped for reasons other than policies, by log prefix."""


class RuleHit(msgspec.Struct, frozen=True, gc=False):
    """A ruling together with its direction and the policies behind it."""

    direction: str
    ruling: Ruling
    isolated_by: tuple[str, ...] = ()
    """For a denial because no rule allows: the isolating policies (for a denial in audit, those in audit)."""

    @property
    def text(self) -> str:
        """The policy, direction and rule, as text."""
        direction = self.direction.lower()
        if self.ruling.audit:
            return f"audit: {self._rule_of(self.ruling.audit_policy, self.ruling.audit_rule)}"
        if self.ruling.policy or not self.ruling.accept:
            return self._rule_of(self.ruling.policy, self.ruling.rule)
        return f"no {direction} policy applies"

    def _rule_of(self, policy: str, rule: int) -> str:
        direction = self.direction.lower()
        return f"{policy} {direction} {rule}" if policy else f"no {direction} rule of {', '.join(self.isolated_by)}"

    @property
    def verdict(self) -> str:
        """``allowed``, ``dropped``, or ``audited``: accepted, and dropped if policies in audit were in force."""
        if self.ruling.audit:
            return "audited"
        return "allowed" if self.ruling.accept else "dropped"

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that caused the ruling; empty when no policy applies."""
        policy = self.ruling.audit_policy if self.ruling.audit else self.ruling.policy
        return (policy,) if policy else self.isolated_by

    @property
    def rule(self) -> int:
        """The index of the rule in its policy; -1: no rule."""
        return self.ruling.audit_rule if self.ruling.audit else self.ruling.rule

    def logged(self, log: LogSettings) -> bool:
        """Whether packets that hit the rule are logged."""
        if not log.group or not self.policies:
            return False
        passes = self.ruling.accept and not self.ruling.audit
        if not self.ruling.log:
            return log.allows if passes else log.drops
        return self.ruling.log == ALL or (self.ruling.log == DROPS and not passes)


class DenyingPolicies(msgspec.Struct, frozen=True, gc=False):
    """The policies that a port table names in its denials."""

    direction: str
    isolated_by: tuple[str, ...] = ()
    audited: tuple[str, ...] = ()

    def hit(self, ruling: Ruling) -> RuleHit:
        """A ruling of the table with its policies."""
        if ruling.audit:
            return RuleHit(self.direction, ruling, () if ruling.audit_policy else self.audited)
        alone = not ruling.accept and not ruling.policy
        return RuleHit(self.direction, ruling, self.isolated_by if alone else ())

    def of(self, table: PortTable) -> "DenyingPolicies":
        """The policies that this table really names, so that equal tables share one chain."""
        hits = [self.hit(ruling) for ruling in table.rulings]
        denies = any(rule_hit.isolated_by and not rule_hit.ruling.audit for rule_hit in hits)
        audits = any(rule_hit.isolated_by and rule_hit.ruling.audit for rule_hit in hits)
        return DenyingPolicies(self.direction, self.isolated_by if denies else (), self.audited if audits else ())


def denying_policies(key: ProfileKey) -> DenyingPolicies:
    """The policies that the port tables of a profile name in their denials."""
    return DenyingPolicies(key.direction, key.policies, key.audited)
