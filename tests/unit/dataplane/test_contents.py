"""What of some pieces changed, and whose element it is that two pods stand behind."""

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.state.ipset import Element, IpSet

ONE, TWO = Element(mark=(1, 255)), Element(mark=(2, 255))

Some = KeyedContents[tuple[str, ...], IpSet, str, Element]
Piece = ContentsExtract[tuple[str, ...], IpSet]


def made(**elements: Element) -> IpSet:
    return IpSet(name="s", kind="hash:ip", marks=True, elements=elements)


def some() -> Some:
    """A chain and a set, as they were long ago."""
    pieces: Some = KeyedContents()
    pieces.put("c", ("-j DROP",))
    pieces.add_set(made(a=ONE, b=ONE))
    pieces.changes()
    return pieces


def test_added_changed_and_removed_keys_are_reported_once() -> None:
    pieces = some()
    pieces.put("c", ())
    pieces.put("new", ("-j RETURN",))
    pieces.set("s", "a", None)
    pieces.set_all("s", {"b": TWO, "c": ONE})
    before, now = (
        Piece({"c": ("-j DROP",)}, {"s": made(a=ONE, b=ONE)}),
        Piece({"c": (), "new": ("-j RETURN",)}, {"s": made(b=TWO, c=ONE)}),
    )
    assert pieces.changes() == (before, now)
    assert pieces.changes() == (Piece({}, {}), Piece({}, {}))
    pieces.remove("c")
    pieces.remove_set("s")
    assert pieces.changes() == (Piece({"c": ()}, {"s": made(b=TWO, c=ONE)}), Piece({}, {}))
    assert pieces.chains == {"new": ("-j RETURN",)} and not pieces.sets and not pieces.elements


def test_what_comes_back_before_anybody_asks_is_as_it_was() -> None:
    pieces = some()
    pieces.remove("c")
    pieces.put("c", ("-j DROP",))
    pieces.set("s", "a", TWO)
    pieces.set("s", "a", ONE)
    before, now = pieces.changes()
    assert before == now == Piece({"c": ("-j DROP",)}, {"s": made(a=ONE)})


def test_only_what_was_touched_is_told() -> None:
    pieces = some()
    pieces.set("s", "c", ONE)
    assert pieces.changes() == (Piece({}, {"s": made()}), Piece({}, {"s": made(c=ONE)}))
    assert list(pieces.filled()) == [made(a=ONE, b=ONE, c=ONE)]


def test_a_set_that_is_filled_has_nothing_else() -> None:
    pieces = some()
    pieces.fill(made(b=TWO, c=ONE))
    assert list(pieces.filled()) == [made(b=TWO, c=ONE)]


def test_first_pod_by_name_gets_a_shared_element() -> None:
    pieces = some()
    pieces.claim("shop/web", {"s": {"x": TWO}})
    pieces.claim("shop/db", {"s": {"x": ONE, "y": ONE}})
    assert pieces.elements["s"]["x"] == ONE
    pieces.release("shop/db", {"s": {"x": ONE, "y": ONE}})
    assert pieces.elements["s"]["x"] == TWO
    assert not pieces.has("s", "y")
    pieces.release("shop/web", {"s": {"x": TWO}})
    assert not pieces.has("s", "x") and pieces.has("s", "a")
