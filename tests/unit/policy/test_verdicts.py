"""What rulings say to a reader, and which of them are logged."""

import pytest

from podwire.policy.ports import PortTableBuilder, Ruling, selection
from podwire.policy.profile import ProfileKey
from podwire.policy.settings import SILENT, LogSettings
from podwire.policy.verdicts import DenyingPolicies, RuleHit, denying_policies

OWNER = DenyingPolicies("Ingress", ("shop/a", "shop/b"), ("shop/c",))
DENIED = OWNER.hit(Ruling(accept=False))
ALLOWED = OWNER.hit(Ruling(True, "shop/a", 0))
AUDITED = OWNER.hit(Ruling(accept=True, audit=True))
AUDITED_RULE = OWNER.hit(Ruling(True, "shop/a", 0, audit=True, audit_policy="deny", audit_rule=3))
UNSPOKEN = OWNER.hit(Ruling(accept=True))


@pytest.mark.parametrize(
    ("hit", "text", "verdict", "policies", "rule"),
    [
        (DENIED, "no ingress rule of shop/a, shop/b", "dropped", ("shop/a", "shop/b"), -1),
        (ALLOWED, "shop/a ingress 0", "allowed", ("shop/a",), 0),
        (AUDITED, "audit: no ingress rule of shop/c", "audited", ("shop/c",), -1),
        (AUDITED_RULE, "audit: deny ingress 3", "audited", ("deny",), 3),
        (UNSPOKEN, "no ingress policy applies", "allowed", (), -1),
    ],
)
def test_texts_of_rule_hits(hit: RuleHit, text: str, verdict: str, policies: tuple[str, ...], rule: int) -> None:
    assert (hit.text, hit.verdict, hit.policies, hit.rule) == (text, verdict, policies, rule)


@pytest.mark.parametrize(
    ("asked", "drops", "allows", "dropped", "allowed"),
    [
        ("", True, False, True, False),
        ("", False, True, False, True),
        ("none", True, True, False, False),
        ("drops", False, True, True, False),
        ("all", False, False, True, True),
    ],
)
def test_log_settings_select_packets(asked: str, drops: bool, allows: bool, dropped: bool, allowed: bool) -> None:  # noqa: FBT001
    log = LogSettings(drops=drops, allows=allows)
    for ruling, wanted in (
        (Ruling(accept=False, log=asked), dropped),
        (Ruling(accept=True, audit=True, log=asked), dropped),
        (Ruling(True, "shop/a", 0, log=asked), allowed),
    ):
        assert OWNER.hit(ruling).logged(log) == wanted
        assert not OWNER.hit(ruling).logged(SILENT)
    assert not UNSPOKEN.logged(LogSettings(allows=True))


def test_tables_that_say_nothing_of_their_owner_are_shared() -> None:
    maker = PortTableBuilder()
    maker.decide(selection({"TCP": [(80, 80)]}), Ruling(True, "shop/a", 0))
    made = maker.table(Ruling(accept=True))
    assert OWNER.of(made) == DenyingPolicies("Ingress")
    assert OWNER.of(PortTableBuilder().table(Ruling(accept=False))) == DenyingPolicies("Ingress", ("shop/a", "shop/b"))
    assert OWNER.of(PortTableBuilder().table(Ruling(accept=True, audit=True))) == DenyingPolicies(
        "Ingress", (), ("shop/c",)
    )


def test_a_profile_owns_its_tables() -> None:
    key = ProfileKey(direction="Egress", policies=("a/b",), audited=("a/c",))
    assert denying_policies(key) == DenyingPolicies("Egress", ("a/b",), ("a/c",))
