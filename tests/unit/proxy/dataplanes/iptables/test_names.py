"""Names as kube-proxy has them; the known ones were read off a kube-proxy 1.36."""

from podwire.proxy.dataplanes.iptables.names import PortChains
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort


def port(name: str = "http", protocol: str = "tcp") -> ResolvedPort:
    return ResolvedPort(
        service="default/web", port_name=name, protocol=protocol, family="ip", port=80, cluster_ip="172.30.0.41"
    )


def test_names_are_those_of_kube_proxy() -> None:
    chains = PortChains(port())
    assert chains.cluster == "KUBE-SVC-CDGGSHYLG3RE2FKL"
    assert chains.local == "KUBE-SVL-CDGGSHYLG3RE2FKL"
    assert chains.external == "KUBE-EXT-CDGGSHYLG3RE2FKL"
    assert chains.firewall == "KUBE-FW-CDGGSHYLG3RE2FKL"
    assert chains.endpoint(ResolvedEndpoint("10.180.0.1", 8080)) == "KUBE-SEP-7WW7JE3MKVJF5U6Q"
    assert chains.endpoint(ResolvedEndpoint("10.180.0.2", 8080, True)) == "KUBE-SEP-R377EZRFZZ6RNEZZ"


def test_protocol_and_port_name_tell_ports_apart() -> None:
    names = {PortChains(item).cluster for item in (port(), port(protocol="udp"), port(name=""), port(name="dns"))}
    assert len(names) == 4


def test_names_fit_the_kernel() -> None:
    chains = PortChains(port())
    assert all(len(name) <= 28 for name in (chains.cluster, chains.endpoint(ResolvedEndpoint("fd00::1", 1))))
