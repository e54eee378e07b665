"""Quantities in their canonical form: ``0.5`` is ``500m``, ``1024Mi`` is ``1Gi``, ``1e3`` stays ``1e3``.

The canonical form has no fraction, the largest suffix that allows that, and keeps the family of suffixes it
was written with. Source: ``apimachinery/pkg/api/resource/quantity.go``.
"""

import re
from decimal import ROUND_CEILING, Decimal

PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3}|)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_NANO = Decimal("1e-9")
_MOST = Decimal(2**63 - 1)


def parse(text: str) -> tuple[Decimal, str]:
    """The value and its family: ``decimal``, ``binary`` or ``exponent``.

    Raises: ValueError for text that is no quantity.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"quantities must match the regular expression '{PATTERN}'")
    sign, digits, suffix = match.groups()
    value = Decimal(sign + digits)
    if suffix in _BINARY:
        return value * 1024 ** _BINARY[suffix], "binary"
    if suffix in _DECIMAL:
        return value.scaleb(_DECIMAL[suffix]), "decimal"
    return value.scaleb(int(suffix[1:])), "exponent"


def _limited(value: Decimal) -> Decimal:
    """Rounded up to a billionth, and no larger than 64 bits hold."""
    value = min(max(value, -_MOST), _MOST)
    return value if value == value.quantize(_NANO) else value.quantize(_NANO, ROUND_CEILING)


def canonical(text: str | int | float) -> str:
    """The canonical text of a quantity.

    Raises: ValueError for text that is no quantity.
    """
    return render(*parse(str(text)))


def render(value: Decimal, family: str) -> str:
    """The canonical text of a value in a family of suffixes."""
    value = _limited(value)
    if value == 0:
        return "0"
    if family == "binary" and abs(value) >= 1024 and value == value.to_integral_value():
        whole, power = int(value), 0
        while whole % 1024 == 0 and power < len(_BINARY):
            whole, power = whole // 1024, power + 1
        return f"{whole}{list(_BINARY)[power - 1]}" if power else str(whole)
    powers = [power for power in _DECIMAL.values() if value.scaleb(-power) % 1 == 0]
    best = max(powers)
    whole = int(value.scaleb(-best))
    if family == "exponent":
        return f"{whole}e{best}" if best else str(whole)
    return str(whole) + next(suffix for suffix, power in _DECIMAL.items() if power == best)
