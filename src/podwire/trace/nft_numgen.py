"""Numbers that chance chooses in nftables: which are worth trying, and how likely each is (pure).

Where a drawn number is a part of a map's key, all numbers without an element lead the same way, so one of them stands
for all. Rules that draw again what the rule before did not find are taken together: after k tries with a share q of
misses, nothing is found with probability q^k, and what is found is as likely as anything else.
"""

from bisect import bisect_right

from podwire.state.nft_rules import Assign, Match, Nat, Rule


class Draw:
    """A number that chance chooses: what is worth trying, and how likely each is."""

    def __init__(self, modulus: int, found: list[int] | None = None, tries: int = 1) -> None:
        """``found`` are the numbers that lead to something; None: all of them do.

        ``tries`` is how many like rules stand behind each other, which draw again as long as nothing is found.
        """
        self.modulus = modulus
        self.tries = tries
        self.misses = 0 if found is None else modulus - len(found)
        self.options = list(range(modulus)) if found is None else found
        self.miss = -1
        if found is not None and self.misses:
            self.miss = next(number for number in range(modulus) if number not in set(found))
            self.options = sorted((*found, self.miss))

    def after(self, number: int) -> int | None:
        """What to try after a number; None: all were tried."""
        place = bisect_right(self.options, number)
        return self.options[place] if place < len(self.options) else None

    def probability(self, number: int) -> float:
        """How likely it is after all tries, with those it stands for."""
        rest = (self.misses / self.modulus) ** self.tries
        return rest if number == self.miss else (1 - rest) / (self.modulus - self.misses)


def alike(rules: tuple[Rule, ...]) -> int:
    """How many of the first rules are the same, where nothing but matches stands before what draws."""
    acting = next(statement for statement in rules[0].statements if not isinstance(statement, Match))
    if not isinstance(acting, Assign | Nat):
        return 1
    return next((place for place, rule in enumerate(rules) if rule != rules[0]), len(rules))
