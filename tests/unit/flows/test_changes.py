"""Changes of a kernel as values and lines."""

from podwire.flows.changes import KernelChange, NetworkEvent, merge, name_device, parse, transaction, write


def test_events_of_one_kind_become_one_change() -> None:
    events = [
        NetworkEvent("route", False, "vxlan", 113, "10.244.1.0/24"),
        NetworkEvent("neighbour", False, "eth0", 0, ""),
        NetworkEvent("route", False, "vxlan", 113, "10.244.2.0/24"),
        NetworkEvent("link", True, "veth1", 0, ""),
        NetworkEvent("lost", False, "", 0, ""),
    ]
    changes = merge(events, 7.0)
    assert [(change.text, change.number) for change in changes] == [
        ("+route 10.244.1.0/24 and 1 more dev vxlan of routing", 2),
        ("-link dev veth1", 1),
        ("notifications were lost: any object may have changed", 1),
    ]


def test_a_transaction_names_tables_and_program() -> None:
    change = transaction(
        [("ip podwire-proxy: +element", 3), ("ip podwire-proxy: -rule", 1)], "python3", 8.0, missed=False
    )
    assert (change.subject, change.process, change.number) == ("nftables", "python3", 4)
    assert change.text == "ip podwire-proxy: +element x3, ip podwire-proxy: -rule"


def test_changes_pass_a_log_and_get_their_node() -> None:
    change = KernelChange(at=1.5, subject="link", text="+link dev veth1")
    (read,) = parse(f'starting\n{write(change)}\n{{"at":', "node-1")
    assert (read.at, read.text, read.node) == (1.5, "+link dev veth1", "node-1")


def test_a_deleted_device_keeps_its_name() -> None:
    def deleted(index: int) -> str:
        raise OSError(index)

    names = {4: "veth4"}
    assert name_device(4, deleted, names) == "veth4"
    assert name_device(5, deleted, names) == "#5"
    assert name_device(6, lambda index: f"eth{index}", names) == "eth6"
    assert name_device(0, deleted, names) == ""
