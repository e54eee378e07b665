"""Random numbers of ``numgen`` in nftables: the numbers worth trying, and their probabilities. Pure.

Where a random number is part of a map's key, all numbers without an element have the same effect, so one of them
represents all. Consecutive rules that draw again when the rule before found nothing are taken together: after k tries
with a share q of misses, nothing is found with probability q^k, and all elements are equally likely.
"""

from bisect import bisect_right

from podwire.state.nft_rules import Assign, Match, Nat, Rule


class Draw:
    """A random number: the numbers worth trying, and the probability of each."""

    def __init__(self, modulus: int, numbers: list[int] | None = None, tries: int = 1) -> None:
        """``numbers`` are the numbers with an element; None: all.

        ``tries`` is the number of consecutive equal rules, which draw again as long as nothing is found.
        """
        self.modulus = modulus
        self.tries = tries
        self.misses = 0 if numbers is None else modulus - len(numbers)
        self.options = list(range(modulus)) if numbers is None else numbers
        self.miss = -1
        if numbers is not None and self.misses:
            self.miss = next(number for number in range(modulus) if number not in set(numbers))
            self.options = sorted((*numbers, self.miss))

    def after(self, number: int) -> int | None:
        """The number to try after this one; None: all were tried."""
        index = bisect_right(self.options, number)
        return self.options[index] if index < len(self.options) else None

    def probability(self, number: int) -> float:
        """The probability of this number after all tries, with those that it represents."""
        rest = (self.misses / self.modulus) ** self.tries
        return rest if number == self.miss else (1 - rest) / (self.modulus - self.misses)


def alike(rules: tuple[Rule, ...]) -> int:
    """The number of first rules that are equal, when only matches precede the statement that draws."""
    acting = next(statement for statement in rules[0].statements if not isinstance(statement, Match))
    if not isinstance(acting, Assign | Nat):
        return 1
    return next((index for index, rule in enumerate(rules) if rule != rules[0]), len(rules))
