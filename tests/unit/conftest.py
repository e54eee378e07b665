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
