"""The rules of a Corefile that a name meets, named with their lines."""

import pytest
from tests.unit.dns.names_of_cluster import POD, fill_cluster
from tests.unit.dns.plugins.corefiles import CLUSTER, settings

from podwire.dns.config import DnsConfig
from podwire.dns.zone import Zone, zone_options
from podwire.why.dns.lookup import DnsAnswer, DnsObjects, DnsStep, explain_rules
from podwire.why.dns.rules import apply_rules
from podwire.why.dns.text import render

_WEB = "web.shop.svc.cluster.local"
_OBJECTS = DnsObjects(namespaces=frozenset({"shop"}))


def prepared(plugins: str, before: str = "") -> tuple[DnsConfig, Zone]:
    config = settings(f"{before}. {{\n{plugins}\n{CLUSTER}}}\n", {"/db": "@ IN SOA a b 1 2 3 4 5\n"})
    zone = Zone(zone_options(config))
    fill_cluster(zone)
    return config, zone


def explain(plugins: str, name: str, *, client: str = POD, before: str = "") -> DnsStep:
    config, zone = prepared(plugins, before)
    return explain_rules((name, "A"), zone, config, _OBJECTS, client)


@pytest.mark.parametrize(
    ("plugins", "name", "outcome", "text"),
    [
        (
            f"rewrite name web.example {_WEB}", "web.example", "answer",
            f"Corefile, line 2: rewrite name web.example {_WEB}: web.example. becomes {_WEB}.",
        ),
        ("acl {\nblock net 10.244.0.0/16\n}", _WEB, "refused", "Corefile, line 2: acl: block for 10.244.1.7"),
        ("acl {\nfilter net 10.244.0.0/16\n}", _WEB, "no data", "filter for 10.244.1.7"),
        (
            "autopath @kubernetes", "www.example.com.shop.svc.cluster.local", "forwarded",
            "Corefile, line 2: autopath @kubernetes: tries www.example.com.svc.cluster.local",
        ),
        (
            "template IN A invalid {\nrcode NXDOMAIN\n}", "x.invalid", "no such name",
            "Corefile, line 2: template IN A invalid answers",
        ),
        ("template IN A x.example {\nmatch ^a\n}", "b.x.example", "failure", "there is no fallthrough"),
        ("k8s_external out.example", "web.shop.out.example", "answer", "line 2: k8s_external out.example answers"),
        ("file /db db.example", "www.db.example", "answer", "file /db db.example answers"),
        ("any", _WEB, "answer", ""),
    ],
)  # fmt: skip
def test_rule_that_decides_is_named(plugins: str, name: str, outcome: str, text: str) -> None:
    step = explain(plugins, name)
    assert step.outcome == outcome and step.name == name
    assert text in "\n".join((*step.rules, step.reason))


def test_views_are_named_whether_they_match_or_not() -> None:
    view = "view near {\n expr incidr(client_ip(), '10.244.0.0/16')\n }\n any\n"
    before = f"example.org {{\n {view}\n}}\n"
    near = explain("any", "www.example.org", before=before)
    far = explain("any", "www.example.org", client="192.0.2.7", before=before)
    assert near.rules[0] == "view near matches" and far.rules[0] == "view near does not match"


def test_name_without_a_server_block_is_refused() -> None:
    config = settings("cluster.local {\n any\n kubernetes\n}\n")
    zone = Zone(zone_options(config))
    assert apply_rules("example.com", 1, config, zone, "").end == "refused"


def test_rules_stand_before_the_reason() -> None:
    step = explain(f"rewrite name web.example {_WEB}", "web.example")
    text = list(render(DnsAnswer("web.example", "A", "", None, (step,), "ConfigMap kube-system/coredns")))
    assert text[2].startswith("resolver  none: the name is looked up as it stands; --from POD")
    assert text[5] == "1. web.example: answer" and text[6].startswith("   Corefile, line 2: rewrite name")
