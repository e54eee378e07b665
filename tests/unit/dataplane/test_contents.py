"""Which chains and elements changed, and which pod gets an element that two pods claim."""

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.state.ipset import IpSet, IpSetElement

ONE, TWO = IpSetElement(mark=(1, 255)), IpSetElement(mark=(2, 255))

Contents = KeyedContents[tuple[str, ...], IpSet, str, IpSetElement]
Extract = ContentsExtract[tuple[str, ...], IpSet]


def set_of(**elements: IpSetElement) -> IpSet:
    return IpSet(name="s", kind="hash:ip", marks=True, elements=elements)


def contents_before() -> Contents:
    """A chain and a set that were committed before."""
    contents: Contents = KeyedContents()
    contents.put_chain("c", ("-j DROP",))
    contents.add_set(set_of(a=ONE, b=ONE))
    contents.changes()
    return contents


def test_added_changed_and_removed_keys_are_reported_once() -> None:
    contents = contents_before()
    contents.put_chain("c", ())
    contents.put_chain("new", ("-j RETURN",))
    contents.put_element("s", "a", None)
    contents.put_elements("s", {"b": TWO, "c": ONE})
    before, now = (
        Extract({"c": ("-j DROP",)}, {"s": set_of(a=ONE, b=ONE)}),
        Extract({"c": (), "new": ("-j RETURN",)}, {"s": set_of(b=TWO, c=ONE)}),
    )
    assert contents.changes() == (before, now)
    assert contents.changes() == (Extract({}, {}), Extract({}, {}))
    contents.remove_chain("c")
    contents.remove_set("s")
    assert contents.changes() == (Extract({"c": ()}, {"s": set_of(b=TWO, c=ONE)}), Extract({}, {}))
    assert contents.chains == {"new": ("-j RETURN",)} and not contents.sets and not contents.elements


def test_a_change_that_is_undone_is_no_difference() -> None:
    contents = contents_before()
    contents.remove_chain("c")
    contents.put_chain("c", ("-j DROP",))
    contents.put_element("s", "a", TWO)
    contents.put_element("s", "a", ONE)
    before, now = contents.changes()
    assert before == now == Extract({"c": ("-j DROP",)}, {"s": set_of(a=ONE)})


def test_changes_hold_only_changed_elements() -> None:
    contents = contents_before()
    contents.put_element("s", "c", ONE)
    assert contents.changes() == (Extract({}, {"s": set_of()}), Extract({}, {"s": set_of(c=ONE)}))
    assert list(contents.filled_sets()) == [set_of(a=ONE, b=ONE, c=ONE)]


def test_a_filled_set_has_only_its_elements() -> None:
    contents = contents_before()
    contents.fill_set(set_of(b=TWO, c=ONE))
    assert list(contents.filled_sets()) == [set_of(b=TWO, c=ONE)]


def test_first_pod_by_name_gets_a_shared_element() -> None:
    contents = contents_before()
    contents.claim("shop/web", {"s": {"x": TWO}})
    contents.claim("shop/db", {"s": {"x": ONE, "y": ONE}})
    assert contents.elements["s"]["x"] == ONE
    contents.release("shop/db", {"s": {"x": ONE, "y": ONE}})
    assert contents.elements["s"]["x"] == TWO
    assert not contents.has_element("s", "y")
    contents.release("shop/web", {"s": {"x": TWO}})
    assert not contents.has_element("s", "x") and contents.has_element("s", "a")
