"""The configuration of the router's FRR, checked by FRR itself where it is installed, and its changes."""

import subprocess
from pathlib import Path

import pytest

from podwire.local.fabric.frr import VTYSH, changes, command, render, router_children
from podwire.local.topology import Topology

BOTH = ("10.244.0.0/16", "fd44::/48")
PRINTED = """\
Building configuration...

Current configuration:
!
frr version 8.4.4
hostname machine
no ip forwarding
!
interface eth0
 ip ospf cost 5
exit
!
{router}!
{lists}!
end
"""
"""How FRR prints a configuration: with what others configure, and lists at the end."""


def topology(segments: int = 2) -> Topology:
    return Topology(name="demo", index=1, segment_count=segments, run="/r", state="/s")


def printed(text: str) -> str:
    """What FRR prints after it has read a configuration."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("! ")]
    lists = "".join(line for line in lines if " prefix-list accepted" in line and not line.startswith(" "))
    return PRINTED.format(lists=lists, router="".join(line for line in lines if line not in lists))


def test_the_configuration_of_one_family() -> None:
    assert render(topology(), ("10.244.0.0/16",)) == (
        "! Written by podwire; changes are overwritten.\n"
        "ip prefix-list accepted4 seq 5 permit 10.244.0.0/16 le 32\n"
        "ip prefix-list accepted4 seq 10 permit 198.18.0.0/15 le 32\n"
        "router bgp 64999\n"
        " bgp router-id 10.89.8.254\n"
        " no bgp ebgp-requires-policy\n"
        " no bgp default ipv4-unicast\n"
        " bgp bestpath as-path multipath-relax\n"
        " bgp listen limit 5000\n"
        " neighbor segment0v4 peer-group\n"
        " neighbor segment0v4 remote-as external\n"
        " bgp listen range 10.89.8.0/24 peer-group segment0v4\n"
        " neighbor segment1v4 peer-group\n"
        " neighbor segment1v4 remote-as external\n"
        " bgp listen range 10.89.9.0/24 peer-group segment1v4\n"
        " address-family ipv4 unicast\n"
        "  redistribute connected\n"
        "  neighbor segment0v4 activate\n"
        "  neighbor segment0v4 prefix-list accepted4 in\n"
        "  neighbor segment1v4 activate\n"
        "  neighbor segment1v4 prefix-list accepted4 in\n"
        "  maximum-paths 64\n"
        " exit-address-family\n"
        "exit\n"
    )


def test_each_family_of_pods_has_sessions_on_each_segment() -> None:
    text = render(topology(), BOTH)
    assert [line.split()[3] for line in text.splitlines() if " listen range " in line] == [
        "10.89.8.0/24", "10.89.9.0/24", "fd89:1::/64", "fd89:1:1::/64",
    ]  # fmt: skip
    assert "ipv6 prefix-list accepted6 seq 5 permit fd44::/48 le 128\n" in text
    assert "v4" not in render(topology(), ("fd44::/48",)).replace("no bgp default ipv4-unicast", "")


def test_the_same_configuration_needs_no_change() -> None:
    text = render(topology(), BOTH)
    assert changes(printed(text), text) == ""


def test_other_networks_of_pods_change_lists_alone() -> None:
    before, after = render(topology(), ("10.244.0.0/16",)), render(topology(), ("10.250.0.0/16",))
    assert changes(printed(before), after) == "ip prefix-list accepted4 seq 5 permit 10.250.0.0/16 le 32\n"


def test_a_list_without_an_entry_is_changed_last() -> None:
    after = render(topology(), ("10.244.0.0/16",))
    before = f"ip prefix-list accepted4 seq 15 permit 10.9.0.0/16 le 32\n{after}"
    assert changes(printed(before), after) == "no ip prefix-list accepted4 seq 15 permit 10.9.0.0/16 le 32\n"


def test_segments_come_and_go_with_their_neighbours() -> None:
    two, three = render(topology(2), ("10.244.0.0/16",)), render(topology(3), ("10.244.0.0/16",))
    assert changes(printed(two), three).splitlines() == [
        "router bgp 64999",
        "neighbor segment2v4 peer-group",
        "neighbor segment2v4 remote-as external",
        "bgp listen range 10.89.10.0/24 peer-group segment2v4",
        "exit",
        "router bgp 64999",
        "address-family ipv4 unicast",
        "neighbor segment2v4 activate",
        "neighbor segment2v4 prefix-list accepted4 in",
        "exit",
        "exit",
    ]
    assert changes(printed(three), two).splitlines() == [
        "router bgp 64999",
        "no bgp listen range 10.89.10.0/24 peer-group segment2v4",
        "no neighbor segment2v4 peer-group",
        "exit",
    ]


def test_options_that_are_missing_or_foreign_are_set_back() -> None:
    text = render(topology(), ("10.244.0.0/16",))
    running = printed(text.replace(" no bgp ebgp-requires-policy\n", " no bgp fast-external-failover\n"))
    assert changes(running, text).splitlines() == [
        *("router bgp 64999", "bgp fast-external-failover", "exit"),
        *("router bgp 64999", "no bgp ebgp-requires-policy", "exit"),
    ]


def test_the_programs_read_the_files_of_their_children() -> None:
    zebra, bgpd = router_children(topology(), BOTH, ("python", "-m", "follow"))
    assert bgpd.reload == ("python", "-m", "follow", "/r/router/bgpd.conf")
    for child in (zebra, bgpd):
        (path,) = child.files
        argv = command(child.argv[1])
        assert path in argv and argv[0] == f"/usr/lib/frr/{child.name}"
        assert child.netns == "/r/netns/router" and "/r/router/zserv.api" in argv


@pytest.mark.skipif(not Path(VTYSH).exists(), reason=f"needs {VTYSH} (Debian: frr)")
@pytest.mark.parametrize("cidrs", [("10.244.0.0/16",), ("fd44::/48",), BOTH])
def test_frr_accepts_the_configuration(cidrs: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "bgpd.conf"
    path.write_text(render(topology(), cidrs))
    checked = subprocess.run((VTYSH, "-C", "-f", path), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    path.write_text("router bgp 64999\n nonsense\n")
    assert subprocess.run((VTYSH, "-C", "-f", path), capture_output=True, check=False).returncode != 0
