"""What policies in audit would drop, port by port."""

from podwire.policy.audit import AuditScope, mark
from podwire.policy.ports import EVERYTHING, PortTable, PortTableBuilder, Ruling, selection

WEB, HIGH = selection({"TCP": [(80, 89)]}), selection({"TCP": [(85, 65535)]})
OPEN, SHUT = Ruling(accept=True), Ruling(accept=False)


def table(*decided: tuple[object, Ruling], rest: Ruling) -> PortTable:
    maker = PortTableBuilder()
    for ports, ruling in decided:
        maker.decide(ports, ruling)  # type: ignore[arg-type]
    return maker.table(rest)


def audit_entries(port_table: PortTable) -> list[tuple[str, int, int, bool, str]]:
    return [(e.protocol, e.first, e.last, e.ruling.audit, e.ruling.audit_policy) for e in port_table.entries]


def test_denial_without_rule_in_audit_is_marked() -> None:
    whole = table((WEB, Ruling(True, "shop/a", 0)), rest=SHUT)
    created = mark(table(rest=OPEN), whole, AuditScope(isolating=True))
    assert audit_entries(created) == [
        ("TCP", 0, 79, True, ""),
        ("TCP", 80, 89, False, ""),
        ("TCP", 90, 65535, True, ""),
        ("UDP", 0, 65535, True, ""),
        ("SCTP", 0, 65535, True, ""),
    ]
    assert created.other.audit and created.other.accept


def test_dropped_traffic_is_not_marked() -> None:
    held = table((WEB, Ruling(False, "base", 3)), rest=OPEN)
    created = mark(held, table(rest=SHUT), AuditScope(isolating=True))
    assert created.ruling("TCP", 80) == Ruling(False, "base", 3)
    assert created.ruling("TCP", 90).audit


def test_first_matching_pass_rule_is_named() -> None:
    accepted = Ruling(True, "second", 0)
    passing = ((WEB, Ruling(False, "first", 0)), (HIGH, Ruling(False, "first", 1)), (EVERYTHING, Ruling(False, "x", 2)))
    audited = AuditScope(policies=frozenset({"first", "x"}), passing=passing)
    created = mark(table(rest=accepted), table(rest=SHUT), audited)
    rules = [
        (e.first, e.last, e.ruling.audit_policy, e.ruling.audit_rule) for e in created.entries if e.protocol == "TCP"
    ]
    assert rules == [(0, 79, "x", 2), (80, 89, "first", 0), (90, 65535, "first", 1)]
    assert (created.other.audit_policy, created.other.policy) == ("x", "second")


def test_log_setting_stays_with_the_ruling() -> None:
    audited = AuditScope(policies=frozenset({"deny"}))
    whole = table(rest=Ruling(False, "deny", 0, log="none"))
    assert mark(table(rest=Ruling(True, "a", 0)), whole, audited).other.log == "none"
    assert mark(table(rest=Ruling(True, "a", 0, log="all")), whole, audited).other.log == "all"
