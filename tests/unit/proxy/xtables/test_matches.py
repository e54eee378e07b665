"""Matches of rules in the words of iptables-save."""

from podwire.proxy.xtables.matches import comment, host


def test_matches_are_as_iptables_save_prints_them() -> None:
    assert (comment("web"), host("10.0.0.1"), host("fd00::1")) == (
        '-m comment --comment "web"', "10.0.0.1/32", "fd00::1/128",
    )  # fmt: skip
