import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.state.ipset import KINDS, PLAIN, IpSet, IpSetElement, element_text, parse, plain

SAVED = """\
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 4096 maxelem 65536
add KUBE-CLUSTER-IP 10.96.0.10,sctp:53
add KUBE-CLUSTER-IP 10.96.0.10,tcp:53
create allowed hash:net family inet6 hashsize 1024 maxelem 10 timeout 0 comment
add allowed fd00::/64 timeout 30 comment "two words"
add allowed fd00::1 nomatch
create marked hash:net,iface family inet hashsize 1024 maxelem 65536 comment skbinfo
add marked 0.0.0.0/0,eth0 skbmark 0x100000/0xfff00000
add marked 10.0.0.1,web comment "shop/web" skbmark 0x0/0xfff00000
create ports bitmap:port range 30000-32767
add ports 30080"""


def test_the_text_form_is_that_of_ipset_save() -> None:
    sets = parse(SAVED.splitlines())
    assert "\n".join(map(str, sets)) == SAVED
    cluster, allowed, marked, ports = sets
    assert cluster.elements == plain(["10.96.0.10,sctp:53", "10.96.0.10,tcp:53"])
    assert allowed.elements == {
        "fd00::/64": IpSetElement(timeout_s=30, comment="two words"),
        "fd00::1": IpSetElement(nomatch=True),
    }
    assert marked.elements == {
        "0.0.0.0/0,eth0": IpSetElement(mark=(0x100000, 0xFFF00000)),
        "10.0.0.1,web": IpSetElement(comment="shop/web", mark=(0, 0xFFF00000)),
    }
    assert (ports.ports, ports.elements) == ((30000, 32767), {"30080": PLAIN})


def test_options_chosen_by_the_kernel_are_ignored() -> None:
    lines = [
        "create a hash:net family inet hashsize 64 maxelem 9 counters bucketsize 12 initval 0xe269ba9b",
        "",
        "add a 10.0.0.0/8 packets 3 bytes 180",
    ]
    assert parse(lines) == (
        IpSet(name="a", kind="hash:net", hashsize=64, maxelem=9, elements=plain(["10.0.0.0/8"])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "canonical"),
    [
        ("hash:ip", "FD00:0::1", "fd00::1"),
        ("hash:net", "10.0.0.1/32", "10.0.0.1"),
        ("hash:net", "fd00::/64", "fd00::/64"),
        ("hash:ip,port", "10.0.0.1,TCP:080", "10.0.0.1,tcp:80"),
        ("hash:ip,port", "10.0.0.1,80", "10.0.0.1,tcp:80"),
        ("hash:ip,port", "10.0.0.1,icmp:8/0", "10.0.0.1,icmp:8/0"),
        ("hash:ip,port", "10.0.0.1,47:0", "10.0.0.1,47:0"),
        ("hash:ip,port,ip", "10.0.0.1,udp:53,10.0.0.1", "10.0.0.1,udp:53,10.0.0.1"),
        ("hash:ip,port,net", "10.0.0.1,udp:53,10.0.0.0/24", "10.0.0.1,udp:53,10.0.0.0/24"),
        ("bitmap:port", "0080", "80"),
        ("hash:net,iface", "fd00::1/128,eth0", "fd00::1,eth0"),
        ("hash:net,iface", "::/0,eth0", "::/0,eth0"),
    ],
)
def test_an_element_has_one_form(kind: str, text: str, canonical: str) -> None:
    assert element_text(kind, text) == canonical
    assert element_text(kind, canonical) == canonical


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("add a 10.0.0.1", "set 'a' was not created"),
        ("create a hash:mac", "type 'hash:mac'"),
        ("create a hash:ip family ip", "expected inet or inet6"),
        ("create a hash:ip maxelem", "expected a value after 'maxelem'"),
        ("create a hash:ip maxelem x", "not a number"),
        ("create a hash:ip netmask 24", "unknown option 'netmask'"),
        ("create a", "not enough values"),
        ("destroy a b", "expected create or add"),
        ("add s 10.0.0.300", "10.0.0.300"),
        ("add s 10.0.0.1,80", "expected 1 comma-separated fields"),
        ("add s 10.0.0.1 weight 3", "unknown option 'weight'"),
        ("add p 10.0.0.1,gre:1", "unknown protocol 'gre'"),
        ("add p 10.0.0.1,tcp:65536", "'65536'"),
        ("add n 10.0.0.1/8", "host bits"),
        ("add n 0.0.0.0/0", "length 0"),
    ],
)
def test_a_wrong_line_is_named(line: str, problem: str) -> None:
    declared = ["create s hash:ip", "create p hash:ip,port", "create n hash:net"]
    with pytest.raises(ValueError, match="^'" + line.replace(".", "[.]")) as caught:
        parse([*declared, line])
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": "x" * 32}, "31 bytes"),
        ({"name": "two words"}, "one word"),
        ({"kind": "hash:mac"}, "unknown type 'hash:mac'"),
        ({"elements": plain(["10.0.0.01"])}, "10.0.0.01"),
        ({"elements": plain(["FD00::1"])}, "the canonical form is 'fd00::1'"),
        ({"elements": {"10.0.0.1": IpSetElement(comment="c")}}, "declared without comments"),
        ({"elements": {"10.0.0.1": IpSetElement(comment='"')}, "comment": True}, "double quotes"),
        ({"elements": {"10.0.0.1": IpSetElement(comment="x" * 256)}, "comment": True}, "255 bytes"),
        ({"elements": {"10.0.0.1": IpSetElement(timeout_s=3)}}, "declared without timeouts"),
        ({"elements": {"10.0.0.1": IpSetElement(nomatch=True)}}, "nomatch"),
    ],
)
def test_check_refuses_invalid_sets(changed: dict[str, object], problem: str) -> None:
    fields: dict[str, object] = {"name": "a", "kind": "hash:ip", **changed}
    with pytest.raises(ValueError, match=problem):
        IpSet(**fields).check()  # type: ignore[arg-type]


ADDRESSES = st.ip_addresses(v=4).map(str)
NETWORKS = st.tuples(st.ip_addresses(v=4), st.integers(1, 32)).map(
    lambda pair: f"{pair[0]}/32" if pair[1] == 32 else f"{int(pair[0]) >> 24 or 1}.0.0.0/{max(8, pair[1])}"
)
PORTS = st.tuples(st.sampled_from(["tcp", "udp", "sctp"]), st.integers(0, 65535)).map(
    lambda pair: f"{pair[0]}:{pair[1]}"
)
PARTS = {
    "ip": ADDRESSES,
    "net": NETWORKS,
    "port": PORTS,
    "number": st.integers(0, 65535).map(str),
    "within": NETWORKS | st.just("0.0.0.0/0"),
    "device": st.from_regex(r"[a-z]{1,8}[0-9]{0,3}", fullmatch=True),
}


@given(st.data())
def test_every_set_is_read_back_from_its_text(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    comment, marks = data.draw(st.booleans()), data.draw(st.booleans())
    arguments = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"'), max_size=20)
    options = st.builds(
        IpSetElement,
        timeout_s=st.none() | st.integers(0, 2**31),
        comment=arguments if comment else st.just(""),
        nomatch=st.booleans() if "net" in KINDS[kind] else st.just(False),
        mark=st.none() | st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)) if marks else st.none(),
    )
    key = st.tuples(*(PARTS[part] for part in KINDS[kind])).map(lambda parts: element_text(kind, ",".join(parts)))
    want = IpSet(
        name="a",
        kind=kind,
        timeout_s=9,
        comment=comment,
        marks=marks,
        elements=data.draw(st.dictionaries(key, options, max_size=5)),
    )
    want.check()
    assert parse(str(want).splitlines()) == (want,)
