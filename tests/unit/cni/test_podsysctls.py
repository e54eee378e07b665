"""The sysctls of the node that all pods share."""

from podwire.cluster.podbridge import BRIDGE
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.podsysctls import shared_sysctls
from podwire.cni.protocol import AttachmentKey
from podwire.cni.spec import PortMapping
from podwire.cni.wiring import WiringFacts
from podwire.kernel.sysctl_files import is_reported

NODE = WiringFacts(cidrs=("10.244.1.0/24",))
PORT = PortMapping(host_port=8080, container_port=80, protocol="tcp")


def attachment(*addresses: str, bridge: str = "", ports: tuple[PortMapping, ...] = ()) -> Attachment:
    return Attachment(
        key=AttachmentKey("podwire", "c-web", "eth0"),
        addresses=addresses,
        host_link="web-1",
        mac="02:00:00:00:00:01",
        netns="/run/netns/web",
        bridge=bridge,
        ports=ports,
        gateways=("10.244.1.1",) if bridge else (),
    )


def test_pods_with_own_devices_share_forwarding_of_ipv6() -> None:
    assert shared_sysctls([attachment("10.244.1.2")], NODE) == ()
    (value,) = shared_sysctls([attachment("10.244.1.2", "fd00::2")], NODE)
    assert str(value) == "sysctl net/ipv6/conf/all/forwarding = 1"


def test_the_loopback_network_is_open_while_a_pod_needs_it() -> None:
    closed = shared_sysctls([attachment("10.244.1.2", bridge=BRIDGE)], NODE)
    opened = shared_sysctls([attachment("10.244.1.2", bridge=BRIDGE, ports=(PORT,))], NODE)
    path = f"net/ipv4/conf/{BRIDGE}/route_localnet"
    assert [[value.value for value in values if value.path == path] for values in (closed, opened)] == [["0"], ["1"]]
    assert not any(is_reported(value.path) for value in closed)


def test_reported_sysctls_are_those_of_devices() -> None:
    assert is_reported("net/ipv4/conf/eth0/rp_filter") and is_reported("net/ipv6/conf/all/forwarding")
    assert not is_reported("net/ipv4/conf/eth0/send_redirects")
