"""Computes the replicas to set from the replicas that metrics ask for: stabilization, policies, limits. Pure.

1. Stabilization: within the window of a direction the most cautious recommendation counts, which is the highest for
   the way down (300 s by default) and the lowest for the way up (0 s).
2. Policies: a number of pods or a percentage that may be added or removed in a period. Without ``spec.behavior`` at
   most the larger of 4 and twice the replicas.
3. ``minReplicas`` and ``maxReplicas``.

Source: ``k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go`` (normalizeDesiredReplicas and -WithBehaviors).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from podwire.model.autoscaling import AutoscalerSpec, ScalingPolicy, ScalingRules

_LEAST_UP_LIMIT = 4
_UP = ScalingRules(
    stabilization_window_seconds=0,
    policies=(
        ScalingPolicy(type="Pods", value=4, period_seconds=15),
        ScalingPolicy(type="Percent", value=100, period_seconds=15),
    ),
)
_DOWN = ScalingRules(policies=(ScalingPolicy(type="Percent", value=100, period_seconds=15),))

_IN_RANGE = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
_TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_UP_LIMIT = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_DOWN_LIMIT = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")
_READY = ("ReadyForNewScale", "recommended size matches current size")
_UP_STABILIZED = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
_DOWN_STABILIZED = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)

Text = tuple[str, str]
"""Reason and message of a condition."""


class Recommendation(NamedTuple):
    """The replicas that metrics asked for at a monotonic time."""

    at_s: float
    replicas: int


class ScaleEvent(NamedTuple):
    """A change that was made at a monotonic time; negative on the way down."""

    at_s: float
    change: int


class Past(msgspec.Struct, frozen=True):
    """The recommendations and changes of an autoscaler; the owner drops entries that are older than all windows."""

    recommendations: Sequence[Recommendation] = ()
    events: Sequence[ScaleEvent] = ()


class Normalized(msgspec.Struct, frozen=True):
    """The replicas to set, and the texts of the conditions AbleToScale and ScalingLimited."""

    replicas: int
    able: Text
    limited: bool
    limit: Text


def rules(spec: AutoscalerSpec, downscale_s: float) -> tuple[ScalingRules, ScalingRules]:
    """The rules of both directions, with the defaults filled in; ``downscale_s`` is the cluster's window down."""
    behavior = spec.behavior
    up = (behavior.scale_up if behavior is not None else None) or _UP
    down = (behavior.scale_down if behavior is not None else None) or _DOWN
    return _complete(up, _UP, 0), _complete(down, _DOWN, downscale_s)


def _complete(rules: ScalingRules, default: ScalingRules, window_s: float) -> ScalingRules:
    window = rules.stabilization_window_seconds
    return ScalingRules(
        stabilization_window_seconds=math.ceil(window_s) if window is None else window,
        select_policy=rules.select_policy,
        policies=rules.policies or default.policies,
        tolerance=rules.tolerance,
    )


def normalize(
    spec: AutoscalerSpec, current: int, desired: int, past: Past, now_s: float, downscale_s: float
) -> Normalized:  # fmt: skip
    """The replicas to set when metrics ask for ``desired``."""
    up, down = rules(spec, downscale_s)
    if spec.behavior is None:
        stable = max([desired, *(r.replicas for r in past.recommendations if now_s - r.at_s <= downscale_s)])
        stabilized = _DOWN_STABILIZED
        least, most = (spec.min_replicas, _TOO_FEW), (spec.max_replicas, _TOO_MANY)
        limit = max(2 * current, _LEAST_UP_LIMIT)
        most = (limit, _UP_LIMIT) if limit < spec.max_replicas else most
    else:
        stable = _stabilize(current, desired, past, now_s, (up, down))
        stabilized = _UP_STABILIZED if desired >= current else _DOWN_STABILIZED
        least, most = _by_policies(spec, current, past, now_s, (up, down))
        if stable == current:
            return Normalized(stable, _READY if stable == desired else stabilized, False, _IN_RANGE)
    able = _READY if stable == desired else stabilized
    if stable < least[0]:
        return Normalized(least[0], able, True, least[1])
    if stable > most[0]:
        return Normalized(most[0], able, True, most[1])
    return Normalized(stable, able, False, _IN_RANGE)


def _stabilize(
    current: int, desired: int, past: Past, now_s: float, both: tuple[ScalingRules, ScalingRules]
) -> int:  # fmt: skip
    """The number of replicas between the lowest recent recommendation (up) and the highest (down)."""
    up_s, down_s = (rule.stabilization_window_seconds or 0 for rule in both)
    lowest = min([desired, *(r.replicas for r in past.recommendations if now_s - r.at_s < up_s)])
    highest = max([desired, *(r.replicas for r in past.recommendations if now_s - r.at_s < down_s)])
    return min(max(current, lowest), highest)


def _by_policies(
    spec: AutoscalerSpec, current: int, past: Past, now_s: float, both: tuple[ScalingRules, ScalingRules]
) -> tuple[tuple[int, Text], tuple[int, Text]]:
    """The least and the greatest allowed number of replicas, each with its reason."""
    most = max(current, _reach(both[0], current, past, now_s, 1))
    least = min(current, _reach(both[1], current, past, now_s, -1))
    return (
        (least, _DOWN_LIMIT) if spec.min_replicas < least else (spec.min_replicas, _TOO_FEW),
        (most, _UP_LIMIT) if spec.max_replicas > most else (spec.max_replicas, _TOO_MANY),
    )


def _reach(rule: ScalingRules, current: int, past: Past, now_s: float, sign: int) -> int:
    """The furthest number of replicas that the policies of a direction allow; ``sign`` is 1 for the way up."""
    if rule.select_policy == "Disabled":
        return current
    reached = [_allowed(policy, current, past, now_s, sign) for policy in rule.policies]
    furthest: Callable[[Sequence[int]], int] = max if (rule.select_policy != "Min") == (sign > 0) else min
    return furthest(reached)


def _allowed(policy: ScalingPolicy, current: int, past: Past, now_s: float, sign: int) -> int:
    before = current - sum(event.change for event in past.events if now_s - event.at_s < policy.period_seconds)
    if policy.type == "Pods":
        return before + sign * policy.value
    share = before * (1 + sign * policy.value / 100)
    return math.ceil(share) if sign > 0 else int(share)
