"""What holds for every unit test."""

import asyncio
import gc
from pathlib import Path

import pytest
from hypothesis import settings
from tests.unit.patient_loop import Policy

# How long an example takes says what else the machine does.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
asyncio.set_event_loop_policy(Policy())


_FOLDER = Path(__file__).parent
THOROUGH = (
    "cni/ipam/blocks/test_hostile_objects.py",
    "cni/ipam/test_pool.py",
    "controllers/endpointslice/test_hostile_objects.py",
    "dns/corefile/test_syntax.py",
    "dns/test_hostile_objects.py",
    "dns/test_spread.py",
    "dns/test_wire.py",
    "embedded/scheduler/test_hostile_objects.py",
    "gateway/api/test_hostile_objects.py",
    "gateway/ingress/test_hostile_objects.py",
    "house/test_forked_workers.py",
    "house/test_suite.py",
    "kernel/test_route_codec.py",
    "loadbalancer/test_hostile_objects.py",
    "local/test_bgp_objects.py",
    "local/test_cloud_addresses.py",
    "local/test_cloud_routes.py",
    "local/test_control_plane.py",
    "local/test_control_plane_claims.py",
    "local/test_control_plane_faults.py",
    "local/test_control_plane_races.py",
    "local/test_control_plane_services.py",
    "local/test_ip_blocks.py",
    "local/test_load_balancer_addresses.py",
    "local/test_load_balancer_owners.py",
    "local/test_policy_status.py",
    "policy/check/test_findings_are_true.py",
    "policy/dataplanes/iptables/test_contents.py",
    "policy/dataplanes/nftables/test_contents.py",
    "policy/diff/test_against_the_evaluator.py",
    "policy/test_blocks.py",
    "policy/test_changes_in_place.py",
    "policy/test_hostile_objects.py",
    "policy/test_large.py",
    "policy/test_random.py",
    "proxy/dataplanes/nftables/test_contents.py",
    "proxy/test_choice_by_the_book.py",
    "proxy/test_hostile_objects.py",
    "routing/backends/test_bgp_hostile_objects.py",
    "routing/test_hostile_objects.py",
    "routing/test_planner.py",
    "upgrade/apply/test_run.py",
    "why/services/test_agreement.py",
    "why/services/test_choice.py",
)
"""Files with very many random cases, with runs that are killed at every step, with other processes of pytest, or with a
whole control plane in one process; they get the marker ``thorough``.

They take almost half of the time of all unit tests. ``make unit`` leaves them out, ``make test`` runs them beside the
guests of user-mode Linux.
"""
_THOROUGH_FILES = {_FOLDER / name for name in THOROUGH}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m thorough`` or ``-m "not thorough"``, files are not even read of which no test would run."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    unwanted = {"thorough": False, "not thorough": True}.get(config.option.markexpr)
    return (collection_path in _THOROUGH_FILES) == unwanted or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the thorough files."""
    for item in items:
        if item.path in _THOROUGH_FILES:
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish() -> None:
    """The tests themselves, and all that they import, are not searched for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys of an API server and its administrator."""
    from tests.fakes import apiserver_state

    folder = tmp_path_factory.mktemp("credentials")
    apiserver_state.make_credentials(folder)
    return folder


@pytest.fixture(scope="session")
def filled_state(credentials: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of an API server after its first start."""
    from tests.fakes import apiserver_state

    state = tmp_path_factory.mktemp("state") / "filled.db"
    apiserver_state.fill(apiserver_state.settings_with(credentials, state))
    return state
