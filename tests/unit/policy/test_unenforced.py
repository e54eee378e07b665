"""A node that cannot enforce policies refuses the pods that they are about."""

import pytest
from tests.unit.policy.test_compile import CASES

from podwire.errors import Unsupported
from podwire.policy.compile import compile_world
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.unenforced import Unenforced

MISSING = Unsupported("nftables", "3.13")


def test_pods_that_no_policy_selects_run() -> None:
    plane = Unenforced(MISSING)
    case = next(case for case in CASES if case.name == "without a policy everything passes")
    compiler = compile_world(case.world, "n1")
    assert plane.load(compiler, dict.fromkeys(compiler.pods, "dev")) == ()
    plane.close()


def test_a_pod_that_a_policy_selects_is_refused() -> None:
    plane = Unenforced(MISSING)
    case = next(case for case in CASES if case.name == "a policy without rules isolates")
    compiler = compile_world(case.world, "n1")
    assert plane.update(compiler, {"shop/web": "dev"}, PolicyDelta()) == ()
    with pytest.raises(Unsupported, match="cannot enforce the policies that select shop/db"):
        plane.update(compiler, dict.fromkeys(compiler.pods, "dev"), PolicyDelta())
    assert not plane.disturbed()
    plane.close()
