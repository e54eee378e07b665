"""Rules of iptables in the node of the Service tests: those in the kernel, and those that a data plane wants."""

import msgspec
from tests.kernel.service_namespaces import inside, path
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import iptables_chains
from podwire.kernel.iptables import Kind, Programs, find
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import Ruleset


def programs(kind: Kind) -> Programs:
    result = find(kind)
    assert result is not None, f"Debian's iptables has the programs of {kind}"
    return result


def in_kernel(plane: ServiceOwner | IptablesDataPlane) -> list[str]:
    """The chains and rules of podwire in the kernel, and its rules in foreign chains."""
    return [str(sorted_out(ruleset)) for ruleset in iptables_chains.read(path("node"), PROXY_IPTABLES)]


def sorted_out(ruleset: Ruleset) -> Ruleset:
    return msgspec.structs.replace(
        ruleset, chains=dict(sorted(ruleset.chains.items())), jumps=tuple(sorted(ruleset.jumps))
    )


def desired_rulesets(plane: ServiceOwner | IptablesDataPlane) -> list[str]:
    return [str(sorted_out(ruleset)) for ruleset in plane.desired()]


def iptables(plane: ServiceOwner | IptablesDataPlane, *arguments: str) -> str:
    return inside("node", f"iptables-{plane.programs.kind}", *arguments)
