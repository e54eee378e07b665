"""Connection attempts in both families: answered, refused, arrived without an answer, or lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from podwire.kernel import netns
from podwire.local.conformance import verdicts
from podwire.local.conformance.attempts import Trial, Trials
from podwire.local.conformance.verdicts import ANSWERED, ARRIVED, NOTHING, REFUSED

ADDRESSES = {4: ("10.55.0.1", "10.55.0.2"), 6: ("fd55::1", "fd55::2")}
RULES = """
table inet filter {
  chain in {
    type filter hook input priority 0;
    tcp dport 81 reject with tcp reset
    meta l4proto { tcp, udp, sctp } th dport { 81, 82 } reject
    meta l4proto { tcp, udp, sctp } th dport 83 drop
  }
  chain out {
    type filter hook output priority 0;
    meta l4proto { tcp, udp, sctp } th sport 84 drop
  }
}
"""


def inside(place: Path, *command: str, text: str = "") -> None:
    arguments = ["nsenter", f"--net={place}", *command]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two namespaces with a cable between them; the second one has rules."""
    folder = tmp_path_factory.mktemp("pair")
    ends = folder / "near", folder / "far"
    for place in ends:
        netns.create(place)
    try:
        inside(ends[0], "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(ends[1]))
        for number, place in enumerate(ends):
            four, six = (ADDRESSES[family][number] for family in (4, 6))
            lines = (
                "link set lo up",
                "link set eth0 up",
                f"address add {four}/24 dev eth0",
                f"address add {six}/64 dev eth0 nodad",
            )
            inside(place, "ip", "-batch", "-", text="\n".join(lines))
        inside(ends[1], "nft", "-f", "-", text=RULES)
        yield ends
    finally:
        for place in ends:
            netns.delete(place)


def attempt(pair: tuple[Path, Path], family: int, protocol: str, port: int, *, allowed: bool) -> Trial:
    near, far = ADDRESSES[family]
    return Trial(
        source=pair[0],
        source_address=near,
        target=pair[1],
        address=far,
        protocol=protocol,
        port=port,
        allowed=allowed,
    )


def test_refused_arrived_and_lost_attempts_differ(pair: tuple[Path, Path]) -> None:
    expected = {
        attempt(pair, family, protocol, port, allowed=port == 80): outcome
        for family in (4, 6)
        for protocol in ("TCP", "UDP", "SCTP")
        for port, outcome in ((80, ANSWERED), (81, REFUSED), (82, REFUSED), (83, NOTHING), (84, ARRIVED))
    }
    result = dict(zip(expected, Trials().run(list(expected)), strict=True))
    assert result == expected


def test_many_attempts_run_at_once_and_repeat_with_new_ports(pair: tuple[Path, Path]) -> None:
    trials = Trials()
    subset = [
        attempt(pair, family, protocol, 1000 + number, allowed=True)
        for family in (4, 6)
        for protocol in ("TCP", "UDP", "SCTP")
        for number in range(300)
    ]
    assert set(trials.run(subset)) == {ANSWERED}
    assert set(trials.run(subset[:50])) == {ANSWERED}


def test_a_pod_reaches_itself(pair: tuple[Path, Path]) -> None:
    subset = [
        Trial(
            source=pair[0],
            source_address=ADDRESSES[family][0],
            target=pair[0],
            address=ADDRESSES[family][0],
            protocol=protocol,
            port=90,
            allowed=True,
        )
        for family in (4, 6)
        for protocol in ("TCP", "UDP", "SCTP")
    ]
    assert set(Trials().run(subset)) == {ANSWERED}


@pytest.mark.parametrize("masqueraded", [False, True])
def test_attempts_have_their_own_source_address(pair: tuple[Path, Path], *, masqueraded: bool) -> None:
    """A node has several addresses, and masquerades what it sends into a tunnel."""
    second = {4: "10.55.0.9", 6: "fd55::9"}
    table = "table inet masq { chain c { type nat hook postrouting priority 100; th sport 1-65535 masquerade; }; }"
    only = "table inet only { chain c { type filter hook input priority 0; %s }; }"
    inside(pair[0], "ip", "address", "add", "10.55.0.9/24", "dev", "eth0")
    inside(pair[0], "ip", "address", "add", "fd55::9/64", "dev", "eth0", "nodad")
    if masqueraded:
        inside(pair[0], "nft", "-f", "-", text=table)
    else:
        drops = "ip saddr 10.55.0.1 th dport 91 drop; ip6 saddr fd55::1 th dport 91 drop;"
        inside(pair[1], "nft", "-f", "-", text=only % drops)
    subset = [
        msgspec.structs.replace(attempt(pair, family, protocol, 91, allowed=True), source_address=second[family])
        for family in (4, 6)
        for protocol in ("TCP", "UDP", "SCTP")
    ]
    try:
        assert set(Trials().run(subset)) == {ANSWERED}
    finally:
        if masqueraded:
            inside(pair[0], "nft", "delete", "table", "inet", "masq")
        else:
            inside(pair[1], "nft", "delete", "table", "inet", "only")
        for address in ("10.55.0.9/24", "fd55::9/64"):
            inside(pair[0], "ip", "address", "delete", address, "dev", "eth0")


def test_attempts_have_the_results_that_verdicts_use() -> None:
    assert (verdicts.ANSWERED, verdicts.NOTHING) == (ANSWERED, NOTHING)
