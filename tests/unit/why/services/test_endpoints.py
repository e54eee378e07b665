"""What is said of endpoints."""

from podwire.model import service as api
from podwire.model.meta import ObjectReference
from podwire.proxy.resolve import Candidate, explain
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint
from podwire.why.answer import EndpointChoice
from podwire.why.services.endpoints import Shares, dns_endpoints, explain_endpoints

FACTS = NodeFacts(name="n1", zone="z1")


def candidate(number: int, *, ready: bool = True, local: bool = False, zone: str = "") -> Candidate:
    ref = ObjectReference(kind="Pod", namespace="shop", name=f"web-{number}")
    return Candidate(
        endpoint=ResolvedEndpoint(f"10.0.0.{number}", 80, local),
        ready=ready,
        serving=ready,
        terminating=False,
        zones=frozenset([zone] if zone else []),
        entry=api.Endpoint(node_name=f"n{number}", zone=f"z{number}", target_ref=ref),
        slice_name="web-abc",
    )


def explained_endpoints(
    candidates: tuple[Candidate, ...],
    shares: Shares,
    *,
    local: bool = False,
    forwarded: bool = True,
    remaining: bool = False,
) -> list[tuple[str, bool, str, str]]:
    explained = explain(candidates, FACTS)
    result = explain_endpoints(explained, (), shares, FACTS, local=local, forwarded=forwarded, remembered=remaining)
    return [(e.address, e.used, e.reason, e.message) for e in result]


ONE, TWO = candidate(1, local=True), candidate(2)


def test_one_that_gets_connections() -> None:
    (result,) = explain_endpoints(
        explain((ONE,), FACTS),
        (),
        {("10.0.0.1", 80): (1.0, True)},
        FACTS,
        local=False,
        forwarded=True,
        remembered=False,
    )
    assert result == EndpointChoice(
        address="10.0.0.1",
        port=80,
        used=True,
        reason="Ready",
        message="ready",
        probability=1.0,
        masqueraded=True,
        pod="shop/web-1",
        node="n1",
        zone="z1",
        slice="web-abc",
    )


def test_why_not() -> None:
    half = {("10.0.0.1", 80): (1.0, False)}
    assert explained_endpoints((ONE, TWO), half, local=True)[1][1:] == (
        False,
        "NotLocal",
        "on n2; the policy is Local and this node is n1",
    )
    hinted = (candidate(1, zone="z1"), candidate(2, zone="z2"))
    assert explained_endpoints(hinted, half)[1][1:] == (
        False,
        "HintedForOtherZone",
        "hinted for zone z2; this node is in z1",
    )
    assert explained_endpoints((ONE, candidate(2, ready=False)), half)[1][1:] == (False, "NotReady", "not ready")
    assert explained_endpoints((ONE, TWO), half, remaining=True)[1][1:3] == (False, "Affinity")


def test_rules_that_say_otherwise() -> None:
    shares = {("10.0.0.2", 80): (0.5, False), ("10.0.0.9", 80): (0.5, False)}
    result = explained_endpoints((ONE, candidate(2, ready=False)), shares)
    assert [(address, used, reason) for address, used, reason, _ in result] == [
        ("10.0.0.1", False, "NotInKernel"),
        ("10.0.0.2", True, "OnlyInKernel"),
        ("10.0.0.9", True, "OnlyInKernel"),
    ]


def test_without_a_connection_the_choice_is_explained() -> None:
    assert [used for _, used, _, _ in explained_endpoints((ONE, candidate(2, ready=False)), {}, forwarded=False)] == [
        True,
        False,
    ]


def test_what_dns_lists() -> None:
    result = dns_endpoints((ONE, candidate(2, ready=False)), (TWO,))
    assert [(e.used, e.reason) for e in result] == [(True, "Ready"), (False, "NotReady"), (False, "Duplicate")]
