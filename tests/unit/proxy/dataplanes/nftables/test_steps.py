"""How changes are cut into transactions."""

from podwire.proxy.dataplanes.nftables.steps import ELEMENTS_PER_STEP, steps
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import AddElements, Transaction, diff
from podwire.state.nft_text import parse_rule

SLOTS = Set(name="endpoints", key=("slot",), data=("ipv4_addr",))
SERVICES = Set(name="services", key=("inet_service",), data=("verdict",))


def table(slots: int, verdict: str) -> Table:
    return Table(
        family="ip",
        name="t",
        sets=(
            SLOTS.with_elements(SLOTS.element(str(slot), "10.0.0.1") for slot in range(slots)),
            SERVICES.with_elements([SERVICES.element("80", verdict)]),
        ),
        chains=(
            Chain(name="base", type="nat", hook="prerouting", priority=-100, rules=(parse_rule("jump side"),)),
            Chain(name="side", rules=(parse_rule("th dport vmap @services"),)),
        ),
    )


def operation_names(transaction: Transaction) -> list[str]:
    return [str(operation).split(" {")[0] for operation in transaction.operations]


def test_slots_leave_one_step_later() -> None:
    first, second = steps(diff(table(3, "drop"), table(2, "accept")))
    assert operation_names(first) == ["delete element services", "add element services"]
    assert [str(operation) for operation in second.operations] == ["delete element endpoints { 2 : 10.0.0.1 }"]


def test_chain_is_added_before_its_jumps_and_removed_after() -> None:
    old, new = table(2, "drop"), table(2, "goto wide")
    wide = Chain(name="wide", rules=(parse_rule("accept"),))
    new = Table(family="ip", name="t", sets=new.sets, chains=(*new.chains, wide))
    first, second = steps(diff(old, new))
    assert operation_names(first) == ["add chain wide", "add rule wide accept"]
    assert operation_names(second) == ["delete element services", "add element services"]
    first, second = steps(diff(new, old))
    assert operation_names(first) == ["delete element services", "add element services"]
    assert operation_names(second) == ["flush chain wide", "delete chain wide"]


def test_growth_is_one_step() -> None:
    assert len(list(steps(diff(table(2, "drop"), table(3, "accept"))))) == 1


def test_a_small_new_table_is_one_step() -> None:
    assert len(list(steps(diff(None, table(3, "drop"))))) == 1


def test_a_large_new_table_gets_its_hooks_last() -> None:
    result = list(steps(diff(None, table(2 * ELEMENTS_PER_STEP + 5, "drop"))))
    assert operation_names(result[0]) == [
        "add table",
        "add map endpoints",
        "add map services",
        "add chain side",
        "add rule side th dport vmap @services",
    ]
    sizes = [len(o.elements) for step in result[1:-1] for o in step.operations if isinstance(o, AddElements)]
    assert sizes == [ELEMENTS_PER_STEP, ELEMENTS_PER_STEP, 5, 1]
    assert operation_names(result[-1]) == ["add chain base", "add rule base jump side"]


def test_a_replaced_table_is_one_step() -> None:
    want = Table(family="ip", name="t", comment="new", sets=table(9, "drop").sets)
    assert len(list(steps(diff(table(9, "drop"), want)))) == 1
