"""The reference evaluator against the packet table of policies."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.policy_table import Case, read_cases

from podwire.model.policy import IPBlock
from podwire.policy.connectionmatch import in_block
from podwire.policy.evaluate import Decision, EvaluationOptions, evaluate

CASES = read_cases(Path(__file__).parents[2] / "cases/policies")


def by(decision: Decision) -> str:
    """What decided, as the table says it."""
    if not decision.tier:
        return "none"
    return f"{decision.policy} {decision.rule}" if decision.policy else "no rule"


def audited(*decisions: Decision) -> str:
    """Who would drop a connection, as the table says it: what the source's egress says, else the other side."""
    for decision in decisions:
        if decision.audit:
            return ", ".join(decision.audit) + (f" {decision.audit_rule}" if decision.audit_rule >= 0 else "")
    return "none"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdicts(case: Case) -> None:
    for check in case.checks:
        for family in check.families:
            verdict = evaluate(
                case.world, case.connection(check, family), EvaluationOptions(own_node_egress=case.own_node_egress)
            )
            assert verdict.allowed == check.allowed, (str(check), family, verdict)
            assert check.ingress in ("", by(verdict.ingress)), (str(check), family)
            assert check.egress in ("", by(verdict.egress)), (str(check), family)
            assert check.audit in ("", audited(verdict.egress, verdict.ingress)), (str(check), family)


def test_isolating_policies_are_named() -> None:
    case = next(case for case in CASES if case.name == "peers of one rule do not go with ports of another")
    denied = next(check for check in case.checks if not check.allowed)
    ingress = evaluate(case.world, case.connection(denied, 4)).ingress
    assert ingress.isolated_by == ("shop/a", "shop/b")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_a_range_has_the_addresses_that_share_its_prefix(address: int, base: int, prefix: int) -> None:
    def text(number: int) -> str:
        return ".".join(str(byte) for byte in number.to_bytes(4, "big"))

    shared = address >> (32 - prefix) == base >> (32 - prefix)
    assert in_block(text(address), IPBlock(cidr=f"{text(base)}/{prefix}")) == shared
    assert in_block(text(address), IPBlock(cidr="0.0.0.0/0", excepted=(f"{text(base)}/{prefix}",))) != shared


def test_a_range_that_is_none_has_no_address() -> None:
    assert not in_block("10.0.0.1", IPBlock(cidr="10.0.0.0/33"))
    assert not in_block("somewhere", IPBlock(cidr="0.0.0.0/0"))
