"""Sets in the real kernel against ipset(8): what one writes the other reads, for every type."""

import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address

import msgspec
import pytest

from podwire.errors import KernelError, Unsupported
from podwire.kernel.ipset import IpSets
from podwire.state.ipset import KINDS, Family, IpSet, IpSetElement, element_text, parse, plain
from podwire.state.ipset_diff import Add, replacement

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

NAME = f"pwt-ipset-{os.getpid()}"


def run(*arguments: str, value: str = "") -> str:
    done = subprocess.run(
        ("ip", "netns", "exec", NAME, *arguments), input=value, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


@pytest.fixture
def sets() -> Iterator[IpSets]:
    subprocess.run(("ip", "netns", "add", NAME), check=True)
    try:
        with IpSets(f"/run/netns/{NAME}") as opened:
            yield opened
    finally:
        subprocess.run(("ip", "netns", "delete", NAME), check=True)


def saved(name: str) -> IpSet:
    (result,) = parse(run("ipset", "save", name).splitlines())
    return result


def drawn(kind: str, family: Family, count: int, seed: int = 1) -> dict[str, IpSetElement]:
    """Random elements, some with the same addresses."""
    chance = random.Random(seed)

    def address() -> str:
        if family == "inet6":
            return str(IPv6Address(0xFD << 120 | chance.getrandbits(60)))
        return str(IPv4Address(10 << 24 | chance.getrandbits(24)))

    def network() -> str:
        bits = chance.randint(8, 31)
        if family == "inet6":
            return f"{IPv6Address(0xFD << 120 | chance.getrandbits(bits) << (128 - 8 - bits))}/{8 + bits}"
        return f"{IPv4Address((10 << 24 | chance.getrandbits(24)) >> (32 - bits) << (32 - bits))}/{bits}"

    parts: dict[str, Callable[[], str]] = {
        "ip": address,
        "net": lambda: network() if chance.random() < 0.9 else address(),
        "port": lambda: f"{chance.choice(['tcp', 'udp', 'sctp', 'udplite'])}:{chance.randint(1, 65535)}",
        "number": lambda: str(chance.randint(0, 65535)),
        "within": lambda: network() if chance.random() < 0.9 else address(),
        "device": lambda: f"veth{chance.randint(0, 9)}",  # one network takes 64 devices
    }
    return plain(element_text(kind, ",".join(parts[part]() for part in KINDS[kind])) for _ in range(count))


FAMILIES: tuple[Family, ...] = ("inet", "inet6")
BOTH = [(kind, family) for kind in KINDS for family in FAMILIES if kind != "bitmap:port" or family == "inet"]


@pytest.mark.parametrize(("kind", "family"), BOTH)
def test_ipset_and_podwire_read_each_others_sets(sets: IpSets, kind: str, family: Family) -> None:
    want = IpSet(name="some", kind=kind, family=family, hashsize=64, elements=drawn(kind, family, 1500))
    sets.apply(want)
    there = saved("some")
    assert (there.declaration, there.elements) == (want.declaration, want.elements)
    other = msgspec.structs.replace(want, name="other", elements=drawn(kind, family, 1500, seed=2))
    run("ipset", "restore", value=str(other))
    result = sets.read("other")
    assert result is not None
    assert (result.declaration, result.elements) == (other.declaration, other.elements)


def test_a_set_grows_beyond_its_initial_hash_size(sets: IpSets) -> None:
    want = IpSet(name="some", kind="hash:ip,port", hashsize=64, elements=drawn("hash:ip,port", "inet", 20_000))
    sets.apply(want)
    assert sets.apply(want) == ()
    assert saved("some").elements == want.elements


@pytest.mark.parametrize(("kind", "family"), BOTH)
def test_only_differences_are_written(sets: IpSets, kind: str, family: Family) -> None:
    first = IpSet(name="some", kind=kind, family=family, elements=drawn(kind, family, 500))
    sets.apply(first)
    assert sets.apply(first) == ()
    fewer = dict(list(first.elements.items())[100:])
    new = {key: item for key, item in drawn(kind, family, 50, seed=3).items() if key not in first.elements}
    operations = sets.apply(msgspec.structs.replace(first, elements=fewer | new))
    assert len(operations) == 100 + len(new)
    assert saved("some").elements == fewer | new


def test_options_of_elements_are_written_and_read(sets: IpSets) -> None:
    want = IpSet(
        name="some",
        kind="hash:net",
        timeout_s=600,
        comment=True,
        elements={
            "10.0.0.0/8": IpSetElement(comment="policy default/web, two words"),
            "10.1.0.0/16": IpSetElement(nomatch=True),
            "10.2.0.0/16": IpSetElement(timeout_s=0),
            "10.3.0.0/16": IpSetElement(timeout_s=100000, comment="ü"),
        },
    )
    sets.apply(want)
    for there in (saved("some"), sets.read("some")):
        assert there is not None
        assert there.declaration == want.declaration
        assert {key: (item.comment, item.nomatch) for key, item in there.elements.items()} == {
            key: (item.comment, item.nomatch) for key, item in want.elements.items()
        }
        remaining = {key: item.timeout_s or 0 for key, item in there.elements.items()}
        assert remaining["10.2.0.0/16"] == 0
        assert 0 < remaining["10.0.0.0/8"] <= 600 < remaining["10.3.0.0/16"] <= 100000
    assert sets.apply(want) == ()


def test_sizes_are_read_without_the_elements(sets: IpSets) -> None:
    assert sets.sizes() == {}
    for name, keys in (("some", ["10.0.0.1", "10.0.0.2"]), ("none", [])):
        sets.apply(IpSet(name=name, kind="hash:ip", elements=plain(keys)))
    assert sets.sizes() == {"some": 2, "none": 0}


def test_marks_of_elements_are_written_and_read(sets: IpSets) -> None:
    """The mark that ``-j SET --map-set`` gives to packets; a changed mark overwrites the old one."""
    marked = {
        "0.0.0.0/0,eth0": IpSetElement(mark=(0x100000, 0xFFF00000)),
        "10.0.0.1,web": IpSetElement(mark=(0, 0xFFF00000)),
    }
    want = IpSet(name="some", kind="hash:net,iface", marks=True, comment=True, elements=marked)
    sets.apply(want)
    assert saved("some") == sets.read("some") == want
    assert sets.apply(want) == ()
    other = msgspec.structs.replace(
        want, elements=marked | {"10.0.0.1,web": IpSetElement(mark=(7, 15), comment="shop")}
    )
    assert list(map(str, sets.apply(other))) == ['add some 10.0.0.1,web comment "shop" skbmark 0x7/0xf']
    assert saved("some") == sets.read("some") == other


def test_other_protocols_are_read(sets: IpSets) -> None:
    run("ipset", "restore", value="create a hash:ip,port\nadd a 10.0.0.1,icmp:echo-request\nadd a 10.0.0.1,gre:0\n")
    result = sets.read("a")
    assert result is not None
    assert set(result.elements) == {"10.0.0.1,icmp:8/0", "10.0.0.1,47:0"}
    sets.apply(msgspec.structs.replace(result, name="b"))
    assert sets.read("b") == msgspec.structs.replace(result, name="b")
    assert {line.split()[2] for line in run("ipset", "save", "b").splitlines()[1:]} == {
        "10.0.0.1,icmp:echo-request",
        "10.0.0.1,gre:0",
    }


def test_set_in_use_is_replaced_under_its_rule(sets: IpSets) -> None:
    want = IpSet(name="some", kind="hash:ip", maxelem=4, elements=plain(["10.0.0.1"]))
    sets.apply(want)
    run("iptables-legacy", "-A", "INPUT", "-m", "set", "--match-set", "some", "src", "-j", "DROP")
    with pytest.raises(KernelError, match=r"destroy set some: .*a rule or another set refers to the set"):
        sets.destroy(["some"])
    larger = msgspec.structs.replace(want, maxelem=100, elements=drawn("hash:ip", "inet", 90))
    sets.apply(larger)
    assert saved("some").elements == larger.elements
    assert sets.names() == ("some",)
    run("iptables-legacy", "-F", "INPUT")
    sets.destroy(["some", "never-there"])
    assert sets.names() == ()


def test_packets_never_see_a_partial_replacement(sets: IpSets) -> None:
    old = IpSet(name="some", kind="hash:ip", elements=drawn("hash:ip", "inet", 200))
    new = msgspec.structs.replace(old, elements=drawn("hash:ip", "inet", 300, seed=4))
    sets.apply(old)
    stop, observed = threading.Event(), []

    def look() -> None:
        with IpSets(f"/run/netns/{NAME}") as other:
            while not stop.is_set():
                result = other.read("some")
                assert result is not None
                observed.append(frozenset(result.elements))

    watching = threading.Thread(target=look)
    watching.start()
    for _ in range(30):
        sets.commit(replacement(new))
        sets.commit(replacement(old))
    stop.set()
    watching.join()
    assert set(observed) == {frozenset(old.elements), frozenset(new.elements)}


def test_a_refused_replacement_keeps_the_old_set(sets: IpSets) -> None:
    want = IpSet(name="some", kind="hash:ip", elements=plain(["10.0.0.1"]))
    sets.apply(want)
    small = msgspec.structs.replace(want, maxelem=2, elements=plain(["10.0.0.1", "10.0.0.2", "10.0.0.3"]))
    with pytest.raises(KernelError, match=r"add some~1 10.0.0.3: .*full"):
        sets.apply(small)
    assert saved("some").elements == want.elements
    assert sets.names() == ("some",)
    with pytest.raises(KernelError, match="different types"):
        sets.apply(msgspec.structs.replace(want, kind="hash:net"))
    assert saved("some").kind == "hash:ip"
    assert sets.names() == ("some",)


def test_a_replacement_works_after_an_interrupted_one(sets: IpSets) -> None:
    want = IpSet(name="some", kind="hash:ip", elements=plain(["10.0.0.1"]))
    sets.apply(want)
    run("ipset", "restore", value="create some~1 hash:ip\nadd some~1 10.9.9.9\n")
    sets.apply(msgspec.structs.replace(want, maxelem=7))
    assert saved("some").elements == want.elements
    assert sets.names() == ("some",)


def test_a_refusal_names_its_element(sets: IpSets) -> None:
    ports = IpSet(name="ports", kind="bitmap:port", ports=(30000, 30010), elements=plain(["30001", "40000", "30002"]))
    with pytest.raises(KernelError, match=r"ipset add ports 40000: errno 4352 .*outside of its range"):
        sets.apply(ports)
    assert saved("ports").elements == plain(["30001", "30002"])
    with pytest.raises(ValueError, match="canonical form"):
        sets.apply(IpSet(name="new", kind="hash:net", elements=plain(["10.0.0.1/32"])))
    with pytest.raises(KernelError, match=r"ipset add missing 10.0.0.1: errno 2 "):
        missing = IpSet(name="missing", kind="hash:ip", elements=plain(["10.0.0.1"]))
        sets.commit([Add(missing, "10.0.0.1")])
    assert sets.names() == ("ports",)


def test_sets_of_other_owners_are_listed(sets: IpSets) -> None:
    assert sets.read("theirs") is None
    run("ipset", "create", "theirs", "list:set")
    assert sets.names() == ("theirs",)
    with pytest.raises(Unsupported, match="type list:set"):
        sets.read("theirs")
