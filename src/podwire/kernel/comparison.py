"""Compares a node's kernel with the shares of its agent, from outside of the agent.

The kernel is read directly, so the comparison also works while the agent is stopped or faulty. A change of the cluster
during the comparison can show as a difference. Cost: one dump of each namespace of a share, and one of each of its
tables.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from podwire.kernel import netns
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.state.drift import Difference
from podwire.state.kinds import KINDS
from podwire.state.share import Share


def compare(shares: Iterable[Share], netns_path: Path | None) -> Iterator[Difference]:
    """The differences of all shares in their order; ``netns_path`` is the node's namespace, None that of this process.

    A share that the agent does not know yet counts as a difference, because it is unknown whether the kernel holds it.

    Raises: KernelError when the kernel cannot be read.
    """
    for share in shares:
        if share.note:
            yield Difference(share.title, "+", f"# not known yet: {share.note}")
        elif share.netns and not netns.exists(share.netns):
            yield from share.missing()
        else:
            yield from _compare(share, Path(share.netns) if share.netns else netns_path)


def _compare(share: Share, netns_path: Path | None) -> Iterator[Difference]:
    for name, kind in KINDS.items():
        mark = share.mark(kind)
        if mark is not None:
            yield from share.compare(kind, KERNEL_KINDS[name].read(netns_path, mark))
