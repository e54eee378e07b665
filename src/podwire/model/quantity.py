"""Resource quantities as integers: thousandths of the unit, so ``100m`` of cpu is 100 and ``1Ki`` 1024000.

Source: ``k8s.io/apimachinery/pkg/api/resource`` (suffixes); fractions of a thousandth are rounded up.
"""

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache

from podwire.errors import ConfigError

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}


_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@lru_cache(maxsize=4096)
def parse_milli(quantity: str | int | float) -> int:
    """The quantity in thousandths.

    Raises: ConfigError when the text is not a quantity.
    """
    return _scaled(quantity, 1000)


def parse_nano(quantity: str | int | float) -> int:
    """The quantity in billionths, for what is measured.

    Raises: ConfigError when it is none.
    """
    return _scaled(quantity, 10**9)


def render_decimal(number: int, unit: str = "") -> str:
    """``250m``, ``2``, ``1500u``: a number of ``unit`` (n, u, m or none) in the largest unit in which it is whole."""
    return _render(number, 1000, _DECIMAL[_DECIMAL.index(unit) :])


def render_binary(number: int) -> str:
    """``14508Ki``: a whole number in the largest binary unit in which it is whole."""
    return _render(number, 1024, _BINARY)


def _render(number: int, base: int, units: tuple[str, ...]) -> str:
    if not number:
        return "0"
    unit = 0
    while number % base == 0 and unit < len(units) - 1:
        number, unit = number // base, unit + 1
    return f"{number}{units[unit]}"


def _scaled(quantity: str | int | float, parts: int) -> int:
    text = str(quantity).strip()
    number = text.rstrip("numkKMGTPEi")
    try:
        value = Decimal(number) * _SUFFIXES[text[len(number) :]] * parts
        return int(value.to_integral_value(rounding=ROUND_CEILING))
    except (InvalidOperation, KeyError, ValueError, OverflowError) as failure:
        raise ConfigError(
            "quantity", "", f"cannot parse {text!r}: expected a number with a suffix such as m, Mi"
        ) from failure
