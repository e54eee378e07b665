"""Why a mode cannot be used, as the agent reports it."""

from podwire.errors import KernelError
from podwire.proxy.modes import hidden_clients, unavailable

BROKEN = KernelError("iptables-restore", "ip", 12, "out of memory")


def test_missing_feature_is_named_before_the_failure() -> None:
    assert unavailable("nftables", BROKEN, lambda feature: f"the kernel has no {feature}") == (
        "proxy.mode nftables: the kernel has no nftables"
    )
    assert unavailable("nftables", BROKEN, lambda _: "") == "proxy.mode nftables: out of memory"


def test_relay_hides_clients_from_policies() -> None:
    assert hidden_clients("userspace", 2).startswith("proxy.mode userspace: 2 policies see the node in place of pods ")
    assert hidden_clients("userspace", 0) == hidden_clients("nftables", 2) == ""
