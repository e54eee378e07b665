"""Which rule of which policy a packet hits, the same in every data plane, and whether the packet is logged (pure).

A data plane keeps one object in the kernel for each :class:`RuleIdentity`: its counter, and the log prefix that leads
back to the rule. Denials because no rule allows are named by the pods, not by the policies that isolate the pods: the
list of these policies changes, and may be long.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from podwire.policy.annotations import ALL, DROPS
from podwire.policy.ports import Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.profilerules import ProfilePolicies
from podwire.policy.selectors import PodSelector
from podwire.policy.settings import LogSettings

BORROWED, UNKNOWN, NOBODY, TUNNEL = "podwire-borrowed", "podwire-unknown", "podwire-nobody", "podwire-tunnel"
APART = {
    BORROWED: "the packet came from a pod's device with an address that is not that pod's",
    UNKNOWN: "the source is an address of this node's pods, and the packet came from no known pod's device",
    NOBODY: "the destination is an address of this node's pods, and no known pod has it",
    TUNNEL: "pods may send encapsulated packets only to pods (policy.encapsulation)",
}
"""Why packets are dropped for reasons other than policies, by log prefix."""


_LONGEST = 256
"""No comment in the kernel is longer, in characters."""
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 _./=!,()-]")
"""Characters that neither labels nor the text form of valid selectors contain."""


class RuleHit(msgspec.Struct, frozen=True, gc=False):
    """A ruling together with its direction and the policies behind it."""

    direction: str
    ruling: Ruling
    isolated_by: tuple[str, ...] = ()
    """For a denial because no rule allows: the isolating policies (for a denial in audit, those in audit)."""

    @property
    def text(self) -> str:
        """The policy, direction and rule, as text."""
        return _text(self.direction, self.ruling, f"of {', '.join(self.isolated_by)}")

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


class RuleIdentity(msgspec.Struct, frozen=True, gc=False):
    """What a data plane keeps one object in the kernel for: one rule, or the denials of one profile.

    Unlike a :class:`RuleHit`, it stays the same when other policies come or go.
    """

    direction: str
    ruling: Ruling
    profile: ProfileName | None = None
    """For a denial because no rule allows (also in audit): the profile whose policies deny together."""

    def text(self, subjects: tuple[str, ...] = ()) -> str:
        """The policy, direction and rule, or the pods of the profile, as text.

        ``subjects`` are the selectors of these pods, in their JSON form.
        """
        return _text(self.direction, self.ruling, f"for {subjects_text(subjects)}")

    def logged(self, log: LogSettings) -> bool:
        """Whether packets that hit the rule are logged."""
        ruling = self.ruling
        policy = ruling.audit_policy if ruling.audit else ruling.policy
        if not log.group or not (policy or self.profile is not None):
            return False
        passes = ruling.accept and not ruling.audit
        if not ruling.log:
            return log.allows if passes else log.drops
        return ruling.log == ALL or (ruling.log == DROPS and not passes)

    def hit(self, policies: ProfilePolicies | None) -> RuleHit:
        """The rule with the policies behind it; ``policies`` are those of the profile."""
        if self.profile is None or policies is None:
            return RuleHit(self.direction, self.ruling)
        isolated_by = policies.audited if self.ruling.audit else policies.isolating
        return RuleHit(self.direction, self.ruling, isolated_by)


def rule_identity(name: ProfileName, ruling: Ruling) -> RuleIdentity:
    """The identity of a ruling in a port table of a profile."""
    return RuleIdentity(name.direction, ruling, name if made_together(ruling) else None)


def made_together(ruling: Ruling) -> bool:
    """Whether no single rule made the ruling, but all policies of a profile together."""
    return not ruling.audit_policy if ruling.audit else not ruling.accept and not ruling.policy


def _text(direction: str, ruling: Ruling, together: str) -> str:
    direction = direction.lower()
    if not ruling.audit and ruling.accept and not ruling.policy:
        return f"no {direction} policy applies"
    policy, rule = (ruling.audit_policy, ruling.audit_rule) if ruling.audit else (ruling.policy, ruling.rule)
    text = f"{policy} {direction} {rule}" if policy else f"no {direction} rule {together}"
    return f"audit: {text}" if ruling.audit else text


def subjects_text(subjects: Iterable[str]) -> str:
    """The pods that selectors in their JSON form select, as text for a comment in the kernel; not all if it is long."""
    texts: list[str] = []
    length = 0
    for subject in subjects:
        texts.append(_pods_text(subject))
        length += len(texts[-1])
        if length > _LONGEST:
            break
    return _NOT_PLAIN.sub("?", " and ".join(texts))


@lru_cache(maxsize=1 << 10)
def _pods_text(subject: str) -> str:
    selector = msgspec.json.decode(subject, type=PodSelector)
    labels = str(selector.pods.requirements())
    pods = f"pods {labels}" if labels else "pods"
    if selector.namespace:
        return f"{pods} of {selector.namespace}"
    namespaces = str(selector.namespaces.requirements())
    return f"{pods} of namespaces {namespaces}" if namespaces else f"{pods} of all namespaces"
