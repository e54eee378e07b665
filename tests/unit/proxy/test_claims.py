"""Which Service owns a frontend."""

from podwire.proxy.claims import FrontendClaims


def test_first_service_holds_a_claim_and_next_by_name_follows() -> None:
    claims: FrontendClaims[int] = FrontendClaims()
    assert claims.claim("c", frozenset((1, 2))) == {1, 2}
    assert claims.claim("b", frozenset((2, 3))) == {3}
    assert claims.claim("a", frozenset((2,))) == frozenset()
    assert claims.waiting() == ("a", "b")
    assert claims.released() == []
    assert claims.claim("c", frozenset((1,))) == {1}
    assert claims.released() == ["a", "b"]
    assert claims.claim("a", frozenset((2,))) == {2}
    assert claims.claim("b", frozenset((2, 3))) == {3}
    assert claims.waiting() == ("b",)


def test_service_that_withdraws_its_claim_gets_no_frontend() -> None:
    claims: FrontendClaims[int] = FrontendClaims()
    claims.claim("a", frozenset((1,)))
    claims.claim("b", frozenset((1,)))
    claims.claim("b", frozenset())
    claims.claim("a", frozenset())
    assert claims.released() == []
    assert claims.waiting() == ()


def test_claiming_again_changes_nothing() -> None:
    claims: FrontendClaims[int] = FrontendClaims()
    for _ in range(2):
        assert claims.claim("a", frozenset((1,))) == {1}
        assert claims.claim("b", frozenset((1,))) == frozenset()
    assert claims.released() == []
