"""The address ranges of Services."""

from podwire.model.service import ServiceCidr, ServiceCidrSpec
from podwire.proxy.servicecidrs import ServiceCidrs, cidrs_of


def cidr(*texts: str) -> ServiceCidr:
    return ServiceCidr(spec=ServiceCidrSpec(cidrs=texts))


def test_malformed_and_repeated_ranges_are_left_out() -> None:
    objects = [cidr("10.96.0.0/12", "fd00::/108"), cidr("10.96.0.0/12"), cidr("nonsense", "10.0.0.1/8"), ServiceCidr()]
    assert cidrs_of(objects) == ("10.96.0.0/12", "fd00::/108")


def test_configured_ranges_win_over_objects() -> None:
    objects = [cidr("10.96.0.0/12")]
    assert ServiceCidrs(("10.0.0.0/16",), lambda: objects).ranges == ("10.0.0.0/16",)
    cidrs = ServiceCidrs((), lambda: objects)
    objects.append(cidr("10.112.0.0/16"))
    assert cidrs.ranges == ("10.112.0.0/16", "10.96.0.0/12")
