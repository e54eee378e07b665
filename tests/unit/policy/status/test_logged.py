"""What is told of a packet."""

from podwire.cluster.world import Party
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod
from podwire.policy.connectionmatch import Connection
from podwire.policy.ports import Ruling
from podwire.policy.status.logged import log_line, logged_packet
from podwire.policy.verdicts import RuleHit

WEB = Pod(metadata=ObjectMeta(name="web", namespace="shop"))
FROM = Party(address="10.0.0.1", node="node-1", pod=WEB)
CONNECTION = Connection(source=FROM, destination=Party(address="192.0.2.1"), protocol="TCP", port=443)
DENIED = RuleHit("Egress", Ruling(accept=False), ("shop/a", "shop/b"))


def test_a_line_for_a_person_and_fields_for_the_log() -> None:
    item = logged_packet("node-1", 1_700_000_000.25, DENIED, CONNECTION, source_port=4000, why="since it is so")
    assert log_line(item) == "22:13:20.250 node-1   dropped since it is so"
    assert item.fields() == {
        "from": "shop/web",
        "to": "192.0.2.1",
        "port": "443/TCP",
        "direction": "egress",
        "policy": "shop/a,shop/b",
        "source": "10.0.0.1",
        "destination": "192.0.2.1",
        "why": "since it is so",
    }


def test_the_deciding_rule_is_named() -> None:
    hit = RuleHit("Ingress", Ruling(True, "x", 0, audit=True, audit_policy="deny", audit_rule=2))
    icmp = Connection(source=FROM, destination=CONNECTION.destination, protocol="ICMP")
    item = logged_packet("node-1", 0.0, hit, icmp)
    assert (item.verdict, item.policies, item.rule, item.fields()["port"]) == ("audited", ("deny",), 2, "ICMP")
    assert log_line(item) == "00:00:00.000 node-1   audited shop/web -> 192.0.2.1 ICMP (deny ingress)"


def test_a_rule_that_is_there_no_more() -> None:
    item = logged_packet("node-1", 0.0, None, CONNECTION)
    assert (item.verdict, item.direction, item.policies, item.rule) == ("dropped", "", (), None)
    assert log_line(item).endswith("shop/web -> 192.0.2.1 TCP 443")
