"""Differences as text and as data."""

from tests.unit.policy.diff.worlds import world

from podwire.policy.diff.compare import compare
from podwire.policy.diff.render import data, text

_DB = "podSelector: {matchLabels: {app: db}}"


def line(kind: str, key: str, field: str) -> str:
    return f"{kind} {key} {field}"


def nowhere(_kind: str, _key: str, _field: str) -> str:
    return ""


def test_text() -> None:
    old = world(f"shop/db: {_DB}, ingress: [{{ports: [{{port: sql}}]}}]")
    new = world(
        f"shop/db: {_DB}, ingress: [{{from: [{{podSelector: {{}}}}], ports: [{{port: sql}}, {{port: 1, endPort: 9}}]}}]"
    )
    assert list(text(compare(old, new), (line, nowhere))) == [
        "Deployment shop/web (4 pods) -> Pod shop/db",
        "  now allowed: TCP 1-9",
        "    before: denied: no ingress rule of shop/db allows it",
        "    after:  allowed by shop/db ingress 0",
        "Node n2 -> Pod shop/db (not on the same node) (IPv4)",
        "  now denied: TCP 5432",
        "    before: allowed by shop/db ingress 0 (NetworkPolicy shop/db spec.ingress[0])",
        "    after:  denied: no ingress rule of shop/db allows it",
        "external -> Pod shop/db",
        "  now denied: TCP 5432",
        "    before: allowed by shop/db ingress 0 (NetworkPolicy shop/db spec.ingress[0])",
        "    after:  denied: no ingress rule of shop/db allows it",
        "2 pairs now denied, 4 pairs now allowed",
    ]


def test_everything() -> None:
    result = list(text(compare(world(), world(f"shop/db: {_DB}, policyTypes: [Ingress]")), (nowhere, nowhere)))
    assert "  now denied: everything" in result
    assert "    before: allowed, no policy applies" in result
    assert "    after:  denied: no ingress rule of shop/db allows it" in result


def test_a_workload_is_printed_as_one_name() -> None:
    web = "podSelector: {matchLabels: {app: web}}"
    result = "\n".join(text(compare(world(), world(f"shop/web: {web}, policyTypes: [Egress]")), (nowhere, nowhere)))
    assert "Deployment shop/web (4 pods) -> " in result
    item = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 10.244.1.3/32}}]}]"
    assert "of 4 pods of Deployment shop/web (" in "\n".join(
        text(compare(world(), world(f"shop/web: {item}")), (nowhere, nowhere))
    )


def test_data_has_it_all() -> None:
    result = data(compare(world(), world(f"shop/db: {_DB}, ingress: [{{ports: [{{port: 1}}]}}]")), (nowhere, line))
    (first, *_) = result["differences"]
    assert set(first) == {"from", "to", "ownNode", "families", "changes"}
    sources = [source for item in result["differences"] for source in item["from"]]
    assert {"workload": "Deployment shop/web", "pods": [f"shop/web-{number}" for number in range(4)]} in sources
    assert {"external": "rest"} in sources
    change = first["changes"][0]
    assert (change["protocol"], change["first"], change["last"]) == ("TCP", 0, 0)
    assert change["after"] == {
        "allowed": False,
        "reasons": [{"direction": "Ingress", "policy": "", "rule": -1, "isolatedBy": ["shop/db"], "where": ""}],
    }
