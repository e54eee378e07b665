import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.state.ipset import IpSet, IpSetElement, plain
from podwire.state.ipset_diff import diff, replacement, spare_name

SET = IpSet(name="KUBE-IPS", kind="hash:ip", elements=plain(["10.0.0.1", "10.0.0.2"]))


def text(*operations: object) -> list[str]:
    return [str(operation) for operation in operations]


def test_a_set_that_is_not_there_is_made() -> None:
    assert text(*diff(None, SET)) == [
        "create KUBE-IPS hash:ip family inet hashsize 1024 maxelem 65536",
        "add KUBE-IPS 10.0.0.1",
        "add KUBE-IPS 10.0.0.2",
    ]


def test_elements_alone_are_changed() -> None:
    want = msgspec.structs.replace(SET, elements=plain(["10.0.0.2", "10.0.0.3"]))
    assert text(*diff(SET, want)) == ["del KUBE-IPS 10.0.0.1", "add KUBE-IPS 10.0.0.3"]
    assert diff(SET, SET) == ()


def test_a_larger_hash_and_the_time_left_are_no_difference() -> None:
    have = msgspec.structs.replace(SET, timeout_s=600, comment=True, elements={"10.0.0.1": IpSetElement(300, "one")})
    want = msgspec.structs.replace(have, hashsize=64, elements={"10.0.0.1": IpSetElement(600, "one")})
    assert diff(have, want) == ()
    other = msgspec.structs.replace(want, elements={"10.0.0.1": IpSetElement(600, "two")})
    assert text(*diff(have, other)) == ['add KUBE-IPS 10.0.0.1 timeout 600 comment "two"']


@pytest.mark.parametrize("changed", [{"maxelem": 9}, {"timeout_s": 5}, {"comment": True}, {"kind": "hash:net"}])
def test_a_set_declared_otherwise_is_replaced_at_once(changed: dict[str, object]) -> None:
    want = msgspec.structs.replace(SET, **changed)
    operations = text(*diff(SET, want))
    assert operations == text(*replacement(want))
    assert operations[1].startswith("create KUBE-IPS~1 ")
    assert [operations[0], *operations[2:]] == [
        "destroy KUBE-IPS~1",
        "add KUBE-IPS~1 10.0.0.1",
        "add KUBE-IPS~1 10.0.0.2",
        "swap KUBE-IPS KUBE-IPS~1",
        "destroy KUBE-IPS~1",
    ]


def test_the_family_of_ports_means_nothing() -> None:
    ports = IpSet(name="p", kind="bitmap:port")
    assert diff(ports, msgspec.structs.replace(ports, family="inet6")) == ()
    assert diff(ports, msgspec.structs.replace(ports, ports=(1, 2)))


def test_a_spare_name_fits_where_the_name_fits() -> None:
    long = "x" * 31
    assert len(spare_name(long)) == 31
    assert spare_name(long) != long


KEYS = st.dictionaries(
    st.ip_addresses(v=4).map(str), st.builds(IpSetElement, comment=st.sampled_from(["", "c"])), max_size=9
)


@given(KEYS, KEYS)
def test_the_difference_leads_from_one_to_the_other(
    before: dict[str, IpSetElement], after: dict[str, IpSetElement]
) -> None:
    have = msgspec.structs.replace(SET, comment=True, elements=before)
    want = msgspec.structs.replace(SET, comment=True, elements=after)
    held = dict(before)
    for operation in diff(have, want):
        verb, _, key = str(operation).split(" ")[:3]
        if verb == "del":
            del held[key]
        else:
            held[key] = after[key]
    assert held == after
