"""The policy part of an answer as text."""

import msgspec

from podwire.why import answer_text, policy_text
from podwire.why.answer import (
    Answer,
    ConnectionEnd,
    DirectionVerdict,
    Drift,
    Hop,
    MatchedRule,
    NearestRule,
    NodeEnforcement,
    PolicyReference,
    PolicyVerdict,
    RuleMatch,
    RuleTerm,
)
from podwire.why.policy_text import one_audited, one_line

FREE = DirectionVerdict(
    direction="Egress",
    subject="shop/web",
    peer="shop/db",
    node="n1",
    allowed=True,
    reason="NotSelected",
    message="no policy selects shop/web for egress",
)
NEAR = RuleMatch(
    tier="Namespace",
    policy="shop/db",
    field="spec.ingress[0]",
    rule=0,
    action="Accept",
    line="db.yaml:14",
    text="from:\n- podSelector: {}",
    port=RuleTerm(field="spec.ingress[0].ports[0]", text="TCP 5432", line="db.yaml:18"),
)
MISS = RuleTerm(
    field="spec.ingress[0].from[0].podSelector.matchLabels[app]",
    text="podSelector app=api",
    found="the pod has app=web",
)
SHUT = DirectionVerdict(
    direction="Ingress",
    subject="shop/db",
    peer="shop/web",
    node="n2",
    allowed=False,
    tier="Namespace",
    reason="Isolated",
    message="isolated by shop/deny; nearest rule shop/db ingress[0] (db.yaml:14): podSelector app=api, "
    "the pod has app=web",
    isolated_by=(PolicyReference(policy="shop/db", line="db.yaml:11"), PolicyReference(policy="shop/deny")),
    nearest=(NearestRule(rule=NEAR, misses=(MISS,)),),
)
OPEN = DirectionVerdict(
    direction="Ingress",
    subject="shop/db-2",
    peer="shop/web",
    node="n2",
    allowed=True,
    tier="Admin",
    reason="Allowed",
    message='accepted by cluster policy floor ingress[2] "trusted", tier Admin',
    rule=RuleMatch(
        tier="Admin",
        policy="floor",
        field="spec.ingress[2]",
        rule=2,
        name="trusted",
        action="Accept",
        text="action: Accept\nfrom:\n- namespaces: {}",
        peer=RuleTerm(field="spec.ingress[2].from[0]", text="namespaces {}"),
    ),
    passed=(RuleMatch(tier="Admin", policy="first", field="spec.ingress[0]", rule=0, action="Pass", line="f.yaml:3"),),
    audited_by=("shop/try",),
    audit=SHUT,
)
STEP = MatchedRule(
    layer="policy",
    where="forward: ip podwire-policy rule-1",
    rule="counter packets 3 bytes 180 drop",
    elements=("map ingress { x }",),
    object="no ingress rule for pods app=db of shop",
)


def policy_verdict(ingress: DirectionVerdict, pod: str, *nodes: NodeEnforcement) -> PolicyVerdict:
    return PolicyVerdict(
        address="10.0.0.2",
        port=5432,
        pod=pod,
        probability=0.5,
        outcome="allowed" if ingress.allowed else "dropped",
        message="all of it",
        egress=FREE,
        ingress=ingress,
        nodes=nodes,
    )


def answer(*policies: PolicyVerdict, outcome: str = "forwarded") -> Answer:
    hop = Hop(node="n1", mode="m", state="held", outcome="forwarded", reason="Endpoints", message="to one of two")
    return Answer(
        source=ConnectionEnd(kind="Pod", name="shop/web", address="10.0.0.1", node="n1"),
        target=ConnectionEnd(kind="Service", name="shop/db", address="10.96.0.1", port=80),
        protocol="TCP",
        outcome="dropped" if outcome == "dropped" else "untouched" if outcome == "untouched" else "forwarded",
        hops=(hop,),
        policies=policies,
    )


HELD = NodeEnforcement(node="n2", mode="nftables", state="held", outcome="dropped", steps=(STEP,))


def test_some_endpoints_are_dropped() -> None:
    text = "\n".join(
        answer_text.render(answer(policy_verdict(SHUT, "shop/db-1", HELD), policy_verdict(OPEN, "shop/db-2")))
    )
    assert (
        text
        == """\
Pod shop/web (10.0.0.1) on n1 -> Service shop/db (10.96.0.1:80) TCP

outcome   DROPPED in 50% of connections, for 1 of 2 endpoints, at ingress: isolated by shop/deny; nearest rule shop/db \
ingress[0] (db.yaml:14): podSelector app=api, the pod has app=web
services  forwarded: to one of two
          decided on n1, by the m rules in its kernel

policies  DROPPED: shop/db-1
egress    of shop/web on n1: no policy selects shop/web for egress
ingress   of shop/db on n2: DROPPED, isolated by shop/db (db.yaml:11), shop/deny
nearest   shop/db ingress[0] (db.yaml:14)
          podSelector app=api (spec.ingress[0].from[0].podSelector.matchLabels[app]): the pod has app=web
          port TCP 5432 (db.yaml:18) matches
enforced  DROPPED on n2, by the nftables rules in its kernel

policies  allowed: shop/db-2
egress    of shop/web on n1: no policy selects shop/web for egress
ingress   of shop/db-2 on n2: accepted by cluster policy floor ingress[2] "trusted", tier Admin
          passed on by cluster policy first ingress[0] (f.yaml:3), tier Admin
          peer namespaces {} (spec.ingress[2].from[0]) matches
            action: Accept
            from:
            - namespaces: {}
audit     shop/try would drop it: isolated by shop/db (db.yaml:11), shop/deny
nearest   shop/db ingress[0] (db.yaml:14)
          podSelector app=api (spec.ingress[0].from[0].podSelector.matchLabels[app]): the pod has app=web
          port TCP 5432 (db.yaml:18) matches

policy rules on n2 for shop/db-1
  forward: ip podwire-policy rule-1  # no ingress rule for pods app=db of shop
      counter packets 3 bytes 180 drop
        map ingress { x }"""
    )


def test_all_are_dropped_and_equal_endpoints_are_reported_together() -> None:
    lines = list(
        answer_text.render(
            answer(policy_verdict(SHUT, "shop/db-1", HELD), policy_verdict(SHUT, "shop/db-2", HELD), outcome="dropped")
        )
    )
    assert lines[2].startswith("outcome   DROPPED at ingress: isolated by shop/deny")
    assert "policies  DROPPED: shop/db-1, shop/db-2" in lines
    assert "policy rules on n2 for shop/db-1 (and 1 more in the same way)" in lines


def test_dropping_node_is_named_and_services_resolve_at_the_client() -> None:
    lines = list(answer_text.render(answer(policy_verdict(SHUT, "shop/db", HELD), outcome="dropped")))
    assert lines[2].startswith("outcome   DROPPED at ingress on n2: isolated by shop/deny")
    assert lines[3:5] == ["services  forwarded: to one of two", "          decided on n1, by the m rules in its kernel"]
    mute = msgspec.structs.replace(SHUT, direction="Egress", subject="shop/web", node="n1")
    out = msgspec.structs.replace(policy_verdict(OPEN, "shop/db"), egress=mute, outcome="dropped")
    lines = list(answer_text.render(answer(out, outcome="dropped")))
    assert lines[2].startswith("outcome   DROPPED at egress on n1: isolated by shop/deny")


def test_of_many_policies_some_are_named() -> None:
    many = tuple(PolicyReference(policy=f"shop/p{number}") for number in range(20))
    shut = msgspec.structs.replace(SHUT, isolated_by=many)
    lines = list(answer_text.render(answer(policy_verdict(shut, "shop/db"), outcome="dropped")))
    assert any(
        line.endswith("DROPPED, isolated by " + ", ".join(map(str, many[:8])) + " and 12 more") for line in lines
    )


def test_what_no_service_takes_is_let_through() -> None:
    lines = list(answer_text.render(answer(policy_verdict(OPEN, "shop/db"), outcome="untouched")))
    assert lines[2] == 'outcome   let through: accepted by cluster policy floor ingress[2] "trusted", tier Admin'


def test_rules_that_differ() -> None:
    drifted = NodeEnforcement(
        node="n2",
        mode="nftables",
        state="held",
        outcome="dropped",
        drifted=True,
        drift=(Drift(where="ip podwire-policy in-1", sign="-", text="drop"),),
    )
    lines = list(answer_text.render(answer(policy_verdict(SHUT, "shop/db", drifted), outcome="dropped")))
    assert lines[2] == "outcome   DROPPED by the rules of its nodes: all of it"
    place = lines.index("          Drift: the kernel differs from the plan (+ is missing, - is extra)")
    assert lines[place + 1] == "            - ip podwire-policy in-1: drop"


def test_one_line() -> None:
    assert one_line("TCP", 5432, FREE, SHUT) == (
        "shop/web -> shop/db TCP 5432: dropped at ingress: isolated by shop/deny; nearest rule shop/db ingress[0] "
        "(db.yaml:14): podSelector app=api, the pod has app=web"
    )
    assert one_line("ICMP", 0, FREE, OPEN) == (
        "shop/web -> shop/db-2 ICMP: accepted by "
        'cluster policy floor ingress[2] "trusted", tier Admin; in audit, shop/try would drop it: ' + SHUT.message
    )
    assert one_line("TCP", 80, FREE, FREE) == (
        "shop/web -> shop/web TCP 80: allowed: egress, no policy selects shop/web for egress; ingress, "
        "no policy selects shop/web for egress"
    )


def test_one_line_about_audit_leaves_out_the_other_direction() -> None:
    other = msgspec.structs.replace(OPEN, direction="Egress", subject="shop/web")
    both = PolicyVerdict(address="10.0.0.2", port=80, outcome="dropped", message="", egress=other, ingress=SHUT)
    assert one_audited("TCP", both, "Egress") == (
        f"shop/web -> {SHUT.subject} TCP 80: in audit, shop/try would drop it: {SHUT.message}"
    )
    assert one_audited("TCP", both, "Ingress") == ""


def test_outcome_names_both_directions_that_drop() -> None:
    out = msgspec.structs.replace(
        SHUT,
        direction="Egress",
        subject="shop/web",
        peer="shop/db",
        node="n1",
        message="isolated by shop/out",
        nearest=(),
    )
    verdict = msgspec.structs.replace(policy_verdict(SHUT, "shop/db-1"), egress=out)
    (line,) = policy_text.outcome(answer(verdict, outcome="dropped"))
    assert line.startswith(
        "outcome   DROPPED at egress on n1: isolated by shop/out; and at ingress on n2: isolated by "
    )


def test_next_nearest_rules_follow_the_nearest() -> None:
    other = NearestRule(rule=msgspec.structs.replace(NEAR, field="spec.ingress[3]"), misses=(MISS,))
    verdict = msgspec.structs.replace(SHUT, nearest=(*SHUT.nearest, other))
    lines = list(policy_text.at_length(policy_verdict(verdict, "shop/db-1")))
    place = lines.index("or        shop/db ingress[3] (db.yaml:14)")
    assert lines[place + 1].strip().endswith("the pod has app=web")
    assert lines.index("nearest   shop/db ingress[0] (db.yaml:14)") < place
