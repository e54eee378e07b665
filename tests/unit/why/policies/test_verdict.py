"""What is said of connections, against the packet table and word for word."""

from pathlib import Path

import msgspec
import pytest
import yaml
from tests.cases.policy_table import Case, read_cases

from podwire.local.manifests import parse_manifests
from podwire.local.offline.cluster import DescribedCluster, describe_manifests
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EvaluationOptions
from podwire.why.answer import DirectionVerdict, PolicyVerdict
from podwire.why.explain import explain_connection

CASES = read_cases(Path(__file__).parents[3] / "cases/policies")


def by(direction_verdict: DirectionVerdict) -> str:
    """What decided, as the packet table says it."""
    if direction_verdict.rule is not None:
        return f"{direction_verdict.rule.policy} {direction_verdict.rule.rule}"
    return "no rule" if direction_verdict.tier else "none"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(case: Case) -> None:
    for check in case.checks:
        for family in check.families:
            connection = case.connection(check, family)
            result = explain_connection(case.world, connection, EvaluationOptions(own_node_egress=case.own_node_egress))
            assert (result.outcome == "allowed") == check.allowed, (str(check), result.message)
            assert check.ingress in ("", by(result.ingress)), (str(check), result.message)
            assert check.egress in ("", by(result.egress)), (str(check), result.message)
            for item in (result.egress, result.ingress):
                assert_whole(item)


def assert_whole(direction_verdict: DirectionVerdict) -> None:
    """What is said of a direction hangs together."""
    arguments = {"Allowed": True, "Denied": False, "Isolated": False}
    assert direction_verdict.allowed == arguments.get(direction_verdict.reason, True)
    assert (direction_verdict.reason == "Isolated") == (
        direction_verdict.tier == "Namespace" and direction_verdict.rule is None
    )
    if direction_verdict.tier and direction_verdict.rule is not None:
        assert direction_verdict.rule.action == ("Accept" if direction_verdict.allowed else "Deny")
        assert yaml.load(direction_verdict.rule.text, Loader=yaml.CSafeLoader) is not None
    for near in direction_verdict.nearest:
        assert direction_verdict.reason == "Isolated"
        assert near.misses
        assert all(miss.found and miss.field.startswith(near.rule.field) for miss in near.misses)


WORLD = """
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: sales}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blog, labels: {team: press}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {role: worker}}
status: {addresses: [{type: InternalIP, address: 192.168.9.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: webb, tier: front}}
spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i, ports: [{name: sql, containerPort: 5432}]}]}
status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}], phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: blog, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
status: {podIP: 10.0.0.3, podIPs: [{ip: 10.0.0.3}], phase: Running}
---
"""
POLICY = """apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
"""
CLUSTER = """apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: floor}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  ingress:
"""
START = WORLD.count("\n") + 1


def describe_text(text: str) -> DescribedCluster:
    return describe_manifests(parse_manifests(WORLD + text, "p.yaml"))


def asked(text: str, source: str, target: str, port: str = "5432/TCP") -> PolicyVerdict:
    result = describe_text(text)
    number, _, protocol = port.rpartition("/")
    world = result.world
    connection = Connection(
        source=world.party(source), destination=world.party(target), protocol=protocol, port=int(number or 0)
    )
    return explain_connection(world, connection, lines=result.line)


WEB, DB, BLOG, NODE, OUT = "10.0.0.1", "10.0.0.2", "10.0.0.3", "192.168.9.1", "203.0.113.9"
RULE = START + 6
"""The line of the first rule of a policy."""


@pytest.mark.parametrize(
    ("rules", "source", "nearest"),
    [
        (
            ["- {from: [{podSelector: {matchLabels: {app: web}}}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): podSelector app=web, the pod has app=webb",
        ),
        (
            ["- {from: [{podSelector: {matchLabels: {app: web, tier: front, zone: a}}}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): podSelector app=web, the pod has app=webb and "
            "podSelector zone=a, the pod has no label zone",
        ),
        (
            [
                "- {from: [{podSelector: {matchLabels: {app: api}}}]}",
                "- {from: [{podSelector: {matchLabels: {app: web}}}]}",
            ],
            WEB,
            f"ingress[1] (p.yaml:{RULE + 1}): podSelector app=web, the pod has app=webb",
        ),
        (
            [
                "- {from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}",
                "- {from: [{podSelector: {matchLabels: {tier: front}}}], ports: [{port: 80}]}",
            ],
            WEB,
            f"ingress[1] (p.yaml:{RULE + 1}): ports TCP 80, the connection is TCP 5432",
        ),
        (
            ["- {from: [{podSelector: {}}], ports: [{port: 5432, protocol: UDP}, {port: 80, endPort: 90}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): ports UDP 5432, TCP 80-90, the connection is TCP 5432",
        ),
        (
            ["- {ports: [{port: http}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): ports TCP http, the connection is TCP 5432, shop/db has no port http",
        ),
        (
            ["- {ports: [{port: sql, protocol: UDP}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): ports UDP sql, the connection is TCP 5432, port sql of shop/db is TCP 5432",
        ),
        (
            ["- {from: [{podSelector: {matchLabels: {app: web}}}]}"],
            BLOG,
            f"ingress[0] (p.yaml:{RULE}): podSelector app=web, that is for pods of namespace shop, the pod is in blog",
        ),
        (
            ["- {from: [{namespaceSelector: {matchLabels: {team: sales}}, podSelector: {matchLabels: {app: web}}}]}"],
            BLOG,
            f"ingress[0] (p.yaml:{RULE}): namespaceSelector team=sales, namespace blog has team=press",
        ),
        (
            ["- {from: [{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [front, back]}]}}]}"],
            WEB,
            f"ingress[0] (p.yaml:{RULE}): podSelector tier notin (front,back), the pod has tier=front",
        ),
        (
            ["- {from: [{podSelector: {}}]}", "- {from: [{ipBlock: {cidr: 203.0.112.0/24}}]}"],
            OUT,
            f"ingress[1] (p.yaml:{RULE + 1}): ipBlock 203.0.112.0/24, 203.0.113.9 is not in it",
        ),
        (
            [
                "- {from: [{ipBlock: {cidr: 203.0.0.0/16, except: [203.0.113.0/24]}}, "
                "{ipBlock: {cidr: 203.0.112.0/24}}]}"
            ],
            OUT,
            f"ingress[0] (p.yaml:{RULE}): ipBlock 203.0.0.0/16 except 203.0.113.0/24, 203.0.113.9 is in 203.0.113.0/24",
        ),
        (
            ["- {from: [{podSelector: {}}]}"],
            OUT,
            f"ingress[0] (p.yaml:{RULE}): podSelector {{}}, 203.0.113.9 is no pod",
        ),
    ],
)
def test_the_nearest_rule(rules: list[str], source: str, nearest: str) -> None:
    result = asked(POLICY + "\n".join(f"  {rule}" for rule in rules), source, DB)
    assert result.ingress.message == f"isolated by shop/db (p.yaml:{START + 4}); nearest rule shop/db {nearest}"


def test_two_slips_are_nearer_than_a_rule_for_other_pods() -> None:
    rules = [
        "- {from: [{podSelector: {matchLabels: {app: billing}}}]}",
        "- {from: [{namespaceSelector: {matchLabels: {team: sale}}}], ports: [{port: 5433}]}",
        "- {from: [{podSelector: {matchLabels: {role: x, area: y}}}]}",
        "- {from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 1}]}",
    ]
    result = asked(POLICY + "\n".join(f"  {rule}" for rule in rules), WEB, DB).ingress
    assert [near.rule.rule for near in result.nearest] == [1, 0, 2]
    assert [miss.found for miss in result.nearest[0].misses] == [
        "namespace shop has team=sales",
        "the connection is TCP 5432",
    ]
    assert "nearest rule shop/db ingress[1]" in result.message


def test_fields_of_what_missed() -> None:
    rules = "  - from:\n    - podSelector:\n        matchLabels:\n          tier: front\n          app: web\n"
    (result,) = asked(POLICY + rules, WEB, DB).ingress.nearest
    (miss,) = result.misses
    assert miss.field == "spec.ingress[0].from[0].podSelector.matchLabels[app]"
    assert miss.line == f"p.yaml:{RULE + 4}"


def test_one_line() -> None:
    name = "shop/web -> shop/db TCP 5432"
    result = asked(POLICY.replace("  ingress:", "  policyTypes: [Ingress]"), WEB, DB)
    assert result.message == (
        f"{name}: dropped at ingress: isolated by shop/db (p.yaml:{START + 4}), and there is no ingress rule"
    )
    result = asked(POLICY + "  - {ports: [{port: 5432}]}", WEB, DB)
    assert result.message == (
        f"{name}: allowed: egress, no policy selects shop/web for egress; "
        f"ingress, allowed by shop/db ingress[0] (p.yaml:{RULE})"
    )
    both = POLICY.replace("  ingress:", "  policyTypes: [Ingress]")
    both += "---\n" + both.replace("name: db", "name: web").replace("app: db", "app: webb").replace("Ingress", "Egress")
    assert asked(both, WEB, DB).message == (
        f"{name}: dropped at egress: isolated by shop/web (p.yaml:{START + 11}), and there is no egress rule; "
        f"at ingress it would be dropped too: isolated by shop/db (p.yaml:{START + 4}), and there is no ingress rule"
    )


def test_cluster_policies() -> None:
    rules = [
        "  - {name: trusted, action: Pass, from: [{namespaces: {matchLabels: {team: sales}}}]}",
        "  - {name: strangers, action: Deny, from: [{namespaces: {}}], "
        "protocols: [{tcp: {destinationPort: {number: 5432}}}]}",
    ]
    text = CLUSTER + "\n".join(rules)
    first = START + 8
    denied = asked(text, BLOG, DB)
    assert denied.message == (
        'blog/web -> shop/db TCP 5432: dropped at ingress: denied by cluster policy floor ingress[1] "strangers" '
        f"(p.yaml:{first + 1}), tier Admin"
    )
    rule = denied.ingress.rule
    assert rule is not None
    assert rule.peer is not None
    assert rule.port is not None
    assert (rule.peer.text, rule.peer.field) == ("namespaces {}", "spec.ingress[1].from[0]")
    assert (rule.port.text, rule.port.field) == ("TCP 5432", "spec.ingress[1].protocols[0]")
    passed = asked(text, WEB, DB)
    assert passed.outcome == "allowed"
    assert [str(item) for item in passed.ingress.passed] == [f'floor ingress[0] "trusted" (p.yaml:{first})']
    assert asked(text, OUT, DB).ingress.message == (
        "no ingress rule of floor matches, and no NetworkPolicy selects shop/db"
    )


@pytest.mark.parametrize(
    ("source", "target", "reasons"),
    [
        (NODE, DB, ("NoPod", "OwnNode")),
        (DB, NODE, ("OwnNode", "NoPod")),
        (DB, DB, ("Itself", "Itself")),
        (OUT, DB, ("NoPod", "Isolated")),
        (WEB, BLOG, ("NotSelected", "NotSelected")),
    ],
)
def test_why_no_policy_has_a_say(source: str, target: str, reasons: tuple[str, str]) -> None:
    result = asked(POLICY.replace("  ingress:", "  policyTypes: [Ingress, Egress]"), source, target)
    assert (result.egress.reason, result.ingress.reason) == reasons


def test_policies_in_audit() -> None:
    text = POLICY.replace("namespace: shop}", "namespace: shop, annotations: {podwire.io/mode: audit}}")
    result = asked(text + "  - {from: [{podSelector: {matchLabels: {app: web}}}]}", WEB, DB)
    assert (result.outcome, result.ingress.reason, result.ingress.audited_by) == (
        "allowed",
        "NotSelected",
        ("shop/db",),
    )
    assert result.ingress.audit is not None
    assert result.ingress.audit.nearest
    assert "in audit, shop/db would drop it: isolated by shop/db" in result.message
    assert "the pod has app=webb" in result.message


def test_a_rule_as_yaml() -> None:
    text = "  - {from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/30]}}], ports: [{port: sql}]}"
    rule = asked(POLICY + text, WEB, DB).ingress.rule
    assert rule is not None
    assert rule.text.splitlines() == [
        "from:",
        "- podSelector: {}",
        "- ipBlock:",
        '    cidr: "10.0.0.0/8"',
        "    except:",
        '    - "10.0.0.0/30"',
        "ports:",
        "- port: sql",
    ]


def test_verdict_encodes_as_json() -> None:
    result = msgspec.json.decode(msgspec.json.encode(asked(POLICY + "  - {ports: [{port: 5432}]}", WEB, DB)))
    assert result["outcome"] == "allowed"
    assert result["ingress"]["rule"]["policy"] == "shop/db"
