"""What an agent writes for Flannel's nodes and for programs that read Flannel's files."""

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from podwire.agent.config import FlannelSection
from podwire.agent.flanneletcd import FlannelLeases
from podwire.observe.log import Log
from podwire.routing.flannel import annotations
from podwire.routing.flannel.subnetfile import render_subnet_file
from podwire.routing.nodes import LocalNode, Network
from podwire.routing.plan import Plan
from podwire.runtime.files import write_atomically
from podwire.state.link_kinds import Vxlan


class FlannelOutput:
    """The annotations of the Node, the lease and the subnet file, as the section ``flannel`` asks for them."""

    def __init__(self, section: FlannelSection, leases: FlannelLeases | None = None) -> None:
        self._section = section
        self._leases = leases
        self._log = Log("routing")
        self._problem = ""

    def annotations(self, me: LocalNode, plan: Plan) -> dict[str, str]:
        """Flannel's annotations of the Node; none where they are not asked for, or Flannel has no such backend.

        The lease of this node in etcd says the same.
        """
        written = self._annotations(me, plan)
        if self._leases is not None:
            self._leases.announce(written, [str(cidr) for cidr in me.pod_cidrs])
        return written

    async def known(self) -> None:
        """Waits until the leases of other nodes are known, where they are read."""
        if self._leases is not None:
            await self._leases.known.wait()

    def tasks(self, changed: Callable[[], None]) -> dict[str, Callable[[], Awaitable[None]]]:
        """The task that reads the leases, where they are read; ``changed`` is called when they are others."""
        if self._leases is None:
            return {}
        self._leases.changed = changed
        return {"leases of flanneld": self._leases.run}

    def _annotations(self, me: LocalNode, plan: Plan) -> dict[str, str]:
        names = {name: kind for kind, name in annotations.TYPES.items()}
        kind = names.get(plan.facts.backend)
        if not self._section.announce or kind is None:
            return {}
        public = {version: str(address) for version in (4, 6) if (address := me.address(version)) is not None}
        vteps: dict[int, annotations.Vtep | None] = {me.addresses[0].version: None}
        for link in plan.state.links:
            if link.kind == kind and isinstance(link.attributes, Vxlan):
                version = ip_address(link.attributes.local).version
                vteps[version] = annotations.Vtep(link.mac, link.attributes.vni)
        return annotations.write(kind, vteps, public)

    def write(self, me: LocalNode, plan: Plan, networks: Sequence[Network], *, masquerade: bool) -> None:
        """Writes the subnet file when its content differs; a failure is logged once."""
        if not self._section.subnet_file:
            return
        path = Path(self._section.subnet_file)
        data = render_subnet_file(networks, me.pod_cidrs, plan.pod_mtu, masquerade=masquerade).encode()
        problem = ""
        try:
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data)
        except OSError as failure:
            problem = f"cannot write flannel.subnetFile {path}: {failure.strerror or failure}"
        if problem and problem != self._problem:
            self._log.warning(problem)
        self._problem = problem
