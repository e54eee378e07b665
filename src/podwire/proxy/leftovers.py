"""Removes rules that proxies left in the kernel: those of kube-proxy, and all of podwire for ``podwire proxy cleanup``.

Two proxies would translate a packet twice. So kube-proxy's nftables tables are removed when our rules are in force. Its
iptables chains have the same names as those of our data plane ``iptables``; another mode removes both when it starts
(:mod:`podwire.proxy.switch`). Without leftovers, this costs a list of tables and starts no process.
"""

from collections.abc import Callable
from functools import partial

from podwire.errors import KernelError
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.proxy.modes import ServiceModes
from podwire.state.nft_diff import removal

KUBE_PROXY = "kube-proxy"
"""kube-proxy's table in each family."""


def clear_kube_proxy(netns: NetnsPath = None) -> bool:
    """Removes kube-proxy's nftables tables; returns whether there were any.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        families = [family for family, name in nft.tables() if name == KUBE_PROXY and family in ("ip", "ip6")]
        for family in families:
            nft.commit(removal(family, KUBE_PROXY))
    return bool(families)


def clear(netns: NetnsPath = None) -> tuple[str, ...]:
    """Removes the rules of every mode of podwire and of kube-proxy; returns what was removed, one text each.

    Raises: KernelError when some rules cannot be removed; all other rules are removed first.
    """
    modes = ServiceModes(netns)
    steps: dict[str, Callable[[], bool]] = {f"tables of {KUBE_PROXY}": partial(clear_kube_proxy, netns)}
    for name in modes.names():
        steps[f"rules of mode {name}"] = partial(modes.clear, name)
    removed: list[str] = []
    failure: KernelError | None = None
    for rules, step in steps.items():
        try:
            if step():
                removed.append(rules)
        except KernelError as problem:
            failure = failure or problem
    if failure is not None:
        raise failure
    return tuple(removed)
