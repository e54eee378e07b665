"""The requests and limits of a whole pod, as the scheduler and quotas count them.

Containers run at the same time, so they add up. Init containers run one after the other, so the largest one counts. An
init container that keeps running (a sidecar) counts together with all that start after it. The overhead of the runtime
class is added. Resources of the pod itself (``spec.resources``) replace the sum. Source:
``k8s.io/component-helpers/resource``.
"""

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

import msgspec

from podwire.embedded.apiserver.schema import quantity

Object = Mapping[str, Any]


class Amount(msgspec.Struct, frozen=True):
    """A quantity as a number, with the kind of suffix that it was written with."""

    milli: int
    """Thousandths of the unit."""
    family: str = "decimal"
    """``decimal``, ``binary`` or ``exponent``."""

    def __str__(self) -> str:
        """The canonical form of Kubernetes."""
        return quantity.render(Decimal(self.milli) / 1000, self.family)

    def plus(self, other: "Amount") -> "Amount":
        """The sum, in the suffixes of this amount, or in those of the other when this amount is zero."""
        return Amount(self.milli + other.milli, self.family if self.milli else other.family)


Resources = dict[str, Amount]


def parse_amount(text: str | int | float) -> Amount:
    """The amount that a quantity names; fractions of a thousandth are rounded up.

    Raises: ValueError for text that is no quantity.
    """
    value, family = quantity.parse(str(text))
    return Amount(int((value * 1000).to_integral_value(ROUND_CEILING)), family)


def parse_resources(amounts: Mapping[str, Any] | None) -> Resources:
    """A resource list of the API.

    Raises: ValueError for a value that is no quantity.
    """
    return {name: parse_amount(text) for name, text in (amounts or {}).items()}


def add(left: Resources, right: Resources) -> Resources:
    """The sum."""
    return _merge(left, right, Amount.plus)


def _merge(left: Resources, right: Resources, join: Callable[[Amount, Amount], Amount]) -> Resources:
    return left | {name: join(left[name], value) if name in left else value for name, value in right.items()}


def _larger(left: Amount, right: Amount) -> Amount:
    return right if right.milli > left.milli else left


def pod_resources(spec: Object, field: str, *, overhead: bool = True) -> Resources:
    """The pod's ``requests`` or ``limits``; limits get overhead only where a limit exists."""
    total: Resources = {}
    for container in spec.get("containers") or ():
        total = add(total, _of(container, field))
    sidecars: Resources = {}
    starting: Resources = {}
    for container in spec.get("initContainers") or ():
        own = _of(container, field)
        if container.get("restartPolicy") == "Always":
            total, sidecars = add(total, own), add(sidecars, own)
            own = sidecars
        else:
            own = add(own, sidecars)
        starting = _merge(starting, own, _larger)
    total = _merge(total, starting, _larger)
    total |= _of(spec, field)
    if overhead:
        extra = parse_resources(spec.get("overhead"))
        total = add(total, extra if field == "requests" else {name: extra[name] for name in extra if name in total})
    return total


def _of(holder: Object, field: str) -> Resources:
    return parse_resources((holder.get("resources") or {}).get(field))
