"""The process of BIRD: its command, its file, and the identifier of a node."""

from ipaddress import ip_address

from podwire.bgp.configuration import BgpConfiguration
from podwire.bgp.process import bird_child, router_id


def test_the_process_reads_a_changed_file_without_a_restart() -> None:
    config = BgpConfiguration(router_id=router_id(ip_address("10.0.0.1"), "n"), link="eth0", log_file="/run/x/bird.log")
    child = bird_child("/run/x", config)
    assert child.argv == ("/usr/sbin/bird", "-f", "-R", "-c", "/run/x/bird.conf", "-s", "/run/x/bird.ctl")
    assert b"router id 10.0.0.1;" in child.files["/run/x/bird.conf"]
    assert (child.on_file_change, child.restart_by) == ("reload", "kill")


def test_a_node_without_an_ipv4_address_has_an_identifier() -> None:
    ids = {router_id(address, name) for address in (None, ip_address("fd00::1")) for name in ("a", "b")}
    assert len(ids) == 2 and all(int(identifier) for identifier in ids)
