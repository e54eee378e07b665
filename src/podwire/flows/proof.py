"""The proof of a change: how many messages were lost, on which path, when, and what changed at that time. Pure.

A proof is a value with a JSON form. It has the steps of the run, the counts of all flows, and the changes of the nodes'
kernels, with times in seconds since 1970. :func:`explain` joins them: for each span of lost messages the step under
way, and the changes of kernels from :data:`BEFORE_S` before the first lost message until the last.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from podwire.errors import ConfigError
from podwire.flows.changes import KernelChange
from podwire.flows.count import DENIED, FlowReport, LossSpan

BEFORE_S = 1.0
FORMAT = 1
"""The version of the JSON form; a file with another one is refused with both numbers."""


class StepMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a run; ``until`` is 0 while it runs."""

    at: float
    until: float = 0.0
    title: str
    node: str = ""


class ObjectDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What a step changes in an object of the API; ``text`` is a diff, or a line for each changed field."""

    step: str
    object: str
    text: str


class LossProof(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured in the window of a change."""

    title: str
    began: float
    ended: float
    nodes: int = 0
    steps: tuple[StepMark, ...] = ()
    flows: tuple[FlowReport, ...] = ()
    changes: tuple[KernelChange, ...] = ()
    objects: tuple[ObjectDiff, ...] = ()
    format: int = FORMAT


class FlowSum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of flows of one path and kind."""

    path: str
    kind: str
    flows: int
    sent: int
    lost: int
    leaked: int
    broken: int
    gap_ms: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Lost or leaked messages of one flow, with the step and the changes of kernels at that moment."""

    flow: FlowReport
    span: LossSpan
    steps: tuple[StepMark, ...]
    changes: tuple[KernelChange, ...]


def path_of(flow: FlowReport) -> str:
    """The path without the name of the node: ``pod``, ``service``, ``dns``, ...; ``denied`` for denied probes."""
    return "denied" if flow.kind in DENIED else flow.path.partition(" ")[0]


def totals(flows: Iterable[FlowReport]) -> list[FlowSum]:
    """A sum for each path and kind, by path and kind; the denied ones last."""
    groups: dict[tuple[bool, str, str], list[FlowReport]] = {}
    for flow in flows:
        groups.setdefault((flow.kind in DENIED, path_of(flow), flow.kind), []).append(flow)
    return [_sum(path, kind, members) for (_, path, kind), members in sorted(groups.items())]


def _sum(path: str, kind: str, flows: Sequence[FlowReport]) -> FlowSum:
    return FlowSum(
        path=path,
        kind=kind,
        flows=len(flows),
        sent=sum(flow.sent for flow in flows),
        lost=sum(flow.lost for flow in flows),
        leaked=sum(flow.leaked for flow in flows),
        broken=sum(flow.broken for flow in flows),
        gap_ms=max(flow.gap_ms for flow in flows),
    )


def counts(proof: LossProof) -> tuple[int, int, int, int]:
    """Messages lost, messages sent, denied messages that leaked, denied messages sent."""
    open_flows = [flow for flow in proof.flows if flow.kind not in DENIED]
    denied = [flow for flow in proof.flows if flow.kind in DENIED]
    return (
        sum(flow.lost for flow in open_flows),
        sum(flow.sent for flow in open_flows),
        sum(flow.leaked for flow in denied),
        sum(flow.sent for flow in denied),
    )


def explain(proof: LossProof) -> list[Explanation]:
    """Each span of lost or leaked messages in the order of time."""
    explained = [_explanation(proof, flow, span) for flow in proof.flows for span in flow.losses]
    return sorted(explained, key=lambda item: (item.span.first, item.flow.source, item.flow.kind))


def _explanation(proof: LossProof, flow: FlowReport, span: LossSpan) -> Explanation:
    until = proof.ended
    return Explanation(
        flow=flow,
        span=span,
        steps=tuple(step for step in proof.steps if step.at <= span.last and (step.until or until) >= span.first),
        changes=tuple(item for item in proof.changes if span.first - BEFORE_S <= item.at <= span.last),
    )


def render_json(proof: LossProof) -> str:
    """The proof as an indented JSON document."""
    return msgspec.json.format(msgspec.json.encode(proof), indent=1).decode() + "\n"


def parse_json(text: str | bytes, source: str) -> LossProof:
    """The proof of a JSON document.

    Raises: ConfigError when it is none, or of another version.
    """
    try:
        proof = msgspec.json.decode(text, type=LossProof)
    except msgspec.DecodeError as failure:
        raise ConfigError(source, "", f"expected a loss proof of `podwire upgrade`: {failure}") from failure
    if proof.format != FORMAT:
        raise ConfigError(source, "format", f"{proof.format}: expected {FORMAT}")
    return proof


def clock_time(at: float, *, date: bool = False) -> str:
    """A time in UTC, to the millisecond, or with its date to the second."""
    instant = datetime.fromtimestamp(at, UTC)
    if date:
        return instant.strftime("%Y-%m-%d %H:%M:%S")
    return instant.strftime("%H:%M:%S.") + f"{int(at * 1000) % 1000:03}"
