"""What rulings say to a reader, and which of them are logged."""

import pytest

from podwire.policy.ports import Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.profilerules import ProfilePolicies
from podwire.policy.settings import SILENT, LogSettings
from podwire.policy.verdicts import RuleHit, rule_identity, subjects_text

OWNER = ProfileName("Ingress", "0a1b2c")
POLICIES = ProfilePolicies(isolating=("shop/a", "shop/b"), audited=("shop/c",))


def hit_of(ruling: Ruling) -> RuleHit:
    return rule_identity(OWNER, ruling).hit(POLICIES)


DENIED = hit_of(Ruling(accept=False))
ALLOWED = hit_of(Ruling(True, "shop/a", 0))
AUDITED = hit_of(Ruling(accept=True, audit=True))
AUDITED_RULE = hit_of(Ruling(True, "shop/a", 0, audit=True, audit_policy="deny", audit_rule=3))
UNSPOKEN = hit_of(Ruling(accept=True))


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
    for ruling, expected in (
        (Ruling(accept=False, log=asked), dropped),
        (Ruling(accept=True, audit=True, log=asked), dropped),
        (Ruling(True, "shop/a", 0, log=asked), allowed),
    ):
        assert rule_identity(OWNER, ruling).logged(log) == expected
        assert not rule_identity(OWNER, ruling).logged(SILENT)
    assert not rule_identity(OWNER, Ruling(accept=True)).logged(LogSettings(allows=True))


def test_only_denials_depend_on_their_profile() -> None:
    """So the chain of a rule is shared, and that of a denial stays the same when other policies come."""
    rules = (Ruling(True, "shop/a", 0), Ruling(accept=True), Ruling(True, audit=True, audit_policy="deny"))
    assert all(rule_identity(OWNER, ruling).profile is None for ruling in rules)
    for ruling in (Ruling(accept=False), Ruling(accept=True, audit=True)):
        assert rule_identity(OWNER, ruling).profile == OWNER


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ('{"namespace":"shop","namespaces":{},"pods":{"matchLabels":{"app":"db"}}}', "pods app=db of shop"),
        ('{"namespace":"","namespaces":{},"pods":{}}', "pods of all namespaces"),
        (
            '{"namespace":"","namespaces":{"matchLabels":{"team":"x"}},"pods":{}}',
            "pods of namespaces team=x",
        ),
        ('{"namespace":"a","namespaces":{},"pods":{"matchLabels":{"x":"\\"\\n;"}}}', "pods x=??? of a"),
    ],
)
def test_texts_of_subjects(selector: str, text: str) -> None:
    assert subjects_text((selector,)) == text
