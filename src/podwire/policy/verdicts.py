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
    BORROWED: "the sender's device is a pod's, and the address is not that pod's",
    UNKNOWN: "the sender has an address of this node's pods, and its device is none that is known",
    NOBODY: "no pod that is known has the device that leads to this address",
    TUNNEL: "pods send packets of tunnels to pods alone (policy.encapsulation)",
}
"""What drops packets apart from policies, by the prefix of the log."""


class RuleHit(msgspec.Struct, frozen=True, gc=False):
    """A ruling with what a reader needs to know of it."""

    direction: str
    ruling: Ruling
    isolated_by: tuple[str, ...] = ()
    """For a denial because no rule allows: the policies that isolate; where that is only in audit, those in audit."""

    @property
    def text(self) -> str:
        """Which rule of which policy."""
        direction = self.direction.lower()
        if self.ruling.audit:
            return f"audit: {self._rule_of(self.ruling.audit_policy, self.ruling.audit_rule)}"
        if self.ruling.policy or not self.ruling.accept:
            return self._rule_of(self.ruling.policy, self.ruling.rule)
        return f"no policy speaks of it, {direction}"

    def _rule_of(self, policy: str, rule: int) -> str:
        direction = self.direction.lower()
        return f"{policy} {direction} {rule}" if policy else f"no {direction} rule of {', '.join(self.isolated_by)}"

    @property
    def verdict(self) -> str:
        """``allowed``, ``dropped``, or ``audited``: let through, and dropped if policies in audit were in force."""
        if self.ruling.audit:
            return "audited"
        return "allowed" if self.ruling.accept else "dropped"

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that it is due to; none where no policy has a say."""
        policy = self.ruling.audit_policy if self.ruling.audit else self.ruling.policy
        return (policy,) if policy else self.isolated_by

    @property
    def rule(self) -> int:
        """The place of the rule in its policy; -1: no rule."""
        return self.ruling.audit_rule if self.ruling.audit else self.ruling.rule

    def logged(self, log: LogSettings) -> bool:
        """Whether its packets are logged."""
        if not log.group or not self.policies:
            return False
        passes = self.ruling.accept and not self.ruling.audit
        if not self.ruling.log:
            return log.allows if passes else log.drops
        return self.ruling.log == ALL or (self.ruling.log == DROPS and not passes)


class DenyingPolicies(msgspec.Struct, frozen=True, gc=False):
    """For whom a table of ports stands: what its denials are to say."""

    direction: str
    isolated_by: tuple[str, ...] = ()
    audited: tuple[str, ...] = ()

    def hit(self, ruling: Ruling) -> RuleHit:
        """A ruling of the table."""
        if ruling.audit:
            return RuleHit(self.direction, ruling, () if ruling.audit_policy else self.audited)
        alone = not ruling.accept and not ruling.policy
        return RuleHit(self.direction, ruling, self.isolated_by if alone else ())

    def of(self, table: PortTable) -> "DenyingPolicies":
        """What of it the table depends on."""
        hit = [self.hit(ruling) for ruling in table.rulings]
        denies = any(each.isolated_by and not each.ruling.audit for each in hit)
        audits = any(each.isolated_by and each.ruling.audit for each in hit)
        return DenyingPolicies(self.direction, self.isolated_by if denies else (), self.audited if audits else ())


def denying_policies(key: ProfileKey) -> DenyingPolicies:
    """For whom the tables of a profile stand."""
    return DenyingPolicies(key.direction, key.policies, key.audited)
