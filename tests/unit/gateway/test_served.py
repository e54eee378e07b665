"""Which certificate of a Secret is served when engines refuse the newest."""

import msgspec

from podwire.gateway.routes import Certificate
from podwire.gateway.served import ServedCertificates


def test_a_refused_certificate_is_replaced_by_the_last_one() -> None:
    first, weak, third = (Certificate(name="shop/front", chain=text) for text in ("first", "weak", "third"))
    newest = {"shop/front": first}
    served = ServedCertificates()

    def learn(certificate: Certificate, refused: dict[str, str]) -> bool:
        return served.learn([msgspec.structs.replace(certificate, name="gateway shop/front")], refused)

    assert served.of(newest.__getitem__)("shop/front") == first
    assert not learn(first, {})
    newest["shop/front"] = weak
    assert learn(weak, {"gateway shop/front": "too short"})
    assert served.of(newest.__getitem__)("shop/front") == first
    assert served.refused == {("Secret", "shop/front"): "too short"}
    newest["shop/front"] = third
    assert served.of(newest.__getitem__)("shop/front") == third
    assert not served.refused


def test_a_certificate_that_was_never_accepted_is_a_problem() -> None:
    weak = Certificate(name="shop/front", chain="weak")
    served = ServedCertificates()
    served.learn([msgspec.structs.replace(weak, name="gateway shop/front")], {"gateway shop/front": "too short"})
    assert served.of(lambda _key: weak)("shop/front") == "the engine refused the certificate: too short"
