"""What proxies left in the kernel: kube-proxy's tables, and all of podwire's own for ``podwire proxy cleanup``.

Two proxies translate one packet twice. So kube-proxy's nftables tables go once our own rules are in force; its
iptables chains have the names of our data plane ``iptables``, and go with what that one left when another mode starts
(:mod:`podwire.proxy.switch`). Where there is nothing, that costs a list of tables and no process.
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
    """Removes kube-proxy's nftables tables; whether there were any.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        families = [family for family, name in nft.tables() if name == KUBE_PROXY and family in ("ip", "ip6")]
        for family in families:
            nft.commit(removal(family, KUBE_PROXY))
    return bool(families)


def clear(netns: NetnsPath = None) -> tuple[str, ...]:
    """Removes what every mode of podwire and kube-proxy left; returns what there was.

    Raises: KernelError when something cannot be removed; the rest is then gone all the same.
    """
    modes = ServiceModes(netns)
    steps: dict[str, Callable[[], bool]] = {f"tables of {KUBE_PROXY}": partial(clear_kube_proxy, netns)}
    for name in modes.names():
        steps[f"rules of mode {name}"] = partial(modes.clear, name)
    found: list[str] = []
    failure: KernelError | None = None
    for what, step in steps.items():
        try:
            if step():
                found.append(what)
        except KernelError as problem:
            failure = failure or problem
    if failure is not None:
        raise failure
    return tuple(found)
