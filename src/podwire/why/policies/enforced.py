"""Compares the outcome of a packet by the rules of one node with the outcome by the planned rules (pure).

A different outcome is drift; different rules with the same outcome are not. Rules may do more than policies say, such
as dropping packets whose source address is not the pod's. Such rules are planned too, and the answer says that no
policy dropped the packet.
"""

import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from podwire.cluster.world import Party
from podwire.trace.packet import Outcome, Packet, Tracer
from podwire.why.answer import Drift, MatchedRule, NodeEnforcement

_COUNTED = re.compile(r"counter packets \d+ bytes \d+")


def _no_device(_end: Party) -> str:
    return ""


class PolicyRules(msgspec.Struct, frozen=True, kw_only=True):
    """The policy rules of one node; a tracer is None when the rules cannot be traced or were not read."""

    mode: str
    """The policy data plane; empty: the node enforces no policies, or its rules are unknown."""
    planned: Tracer | None = None
    held: Tracer | None = None
    reads: bool = False
    """Whether the kernel was read; it then has no rules when ``held`` is None."""
    device: Callable[[Party], str] = _no_device
    """The node's device towards an end of a connection; empty: the end is the node itself."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader about how the rules were read."""


def enforced(node: str, rules: PolicyRules, packet: Packet, *, allowed: bool) -> NodeEnforcement:
    """The outcome of a packet by a node's rules; ``allowed`` is the verdict of policies on that node."""
    followed = rules.held if rules.reads else rules.planned
    outcome = next(followed.outcomes(packet)) if followed is not None else None
    planned = next(rules.planned.outcomes(packet)) if rules.planned is not None else None
    passes = outcome.verdict == "accept" if outcome is not None else allowed or rules.reads  # no rules, no drops
    expected = planned.verdict == "accept" if planned is not None else allowed
    drift: tuple[Drift, ...] = ()
    if rules.reads and passes != expected:
        drift = tuple(_drift(planned, outcome))
    return NodeEnforcement(
        node=node,
        mode=rules.mode,
        state="held" if rules.reads else "planned",
        outcome=_word(passes=passes),
        drifted=passes != expected,
        steps=tuple(_steps(followed, outcome)),
        drift=drift,
    )


def _word(*, passes: bool) -> Literal["allowed", "dropped"]:
    return "allowed" if passes else "dropped"


def _steps(tracer: Tracer | None, outcome: Outcome | None) -> Iterable[MatchedRule]:
    if tracer is None or outcome is None:
        return
    for step in outcome.steps:
        where = f"{step.hook}: {step.table} {step.chain}"
        yield MatchedRule(
            layer="policy", where=where, rule=step.rule, elements=step.elements, object=tracer.about(step)
        )


def _drift(planned: Outcome | None, held: Outcome | None) -> Iterable[Drift]:
    want, have = _lines(planned), _lines(held)
    yield from (Drift(where=where, sign="+", text=text) for where, text in want if (where, text) not in have)
    yield from (Drift(where=where, sign="-", text=text) for where, text in have if (where, text) not in want)


def _lines(outcome: Outcome | None) -> dict[tuple[str, str], None]:
    """The rules and elements that matched with their table and chain, without the values of counters."""
    lines: dict[tuple[str, str], None] = {}
    for step in outcome.steps if outcome is not None else ():
        lines[f"{step.table} {step.chain}", _COUNTED.sub("counter", step.rule)] = None
        lines |= {(step.table, element): None for element in step.elements}
    return lines
