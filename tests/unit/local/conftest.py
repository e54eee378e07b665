"""A whole control plane in one event loop: the real API server, all local controllers, and hollow nodes."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.fakes import apiserver_state
from tests.fakes.control_plane import ControlPlane, HollowNodes, StartControlPlane
from tests.unit.patient_loop import LoopClock, hurried

from podwire.controllers.registry import OWN_CONTROLLERS
from podwire.embedded.apiserver.server import ApiServer
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.local import controllers
from podwire.local.controllers import ALL_CONTROLLERS, LocalControllerConfig


@pytest.fixture
def plane(credentials: Path, filled_state: Path, tmp_path: Path) -> Iterator[StartControlPlane]:
    """``async with plane(nodes=3) as p``; time that nothing happens in passes quickly."""

    @asynccontextmanager
    async def start(
        *, nodes: int = 3, config: LocalControllerConfig | None = None, delay_s: float = 0.0
    ) -> AsyncIterator[ControlPlane]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        state = shutil.copyfile(filled_state, tmp_path / "state.db")
        settings = apiserver_state.settings_with(credentials, state, port)
        clock = LoopClock()
        servers = [ApiServer(settings, clock)]
        await servers[0].start()

        async def restart(away_s: float) -> None:
            await servers.pop().close()
            await asyncio.sleep(away_s)
            servers.append(ApiServer(settings, clock))
            await servers[0].start()

        api = ApiConfig(
            f"https://127.0.0.1:{port}",
            ca=(credentials / "ca.crt").read_bytes(),
            certificate=(credentials / "admin.crt").read_bytes(),
            key=(credentials / "admin.key").read_bytes(),
        )
        client, kubelet_client = Client(api, clock), Client(api, clock)
        names = [f"node-{number}" for number in range(1, nodes + 1)]
        hollow = HollowNodes(kubelet_client, names, delay_s=delay_s)
        for name in names:
            await hollow.register(name)
        config = msgspec.structs.replace(config or LocalControllerConfig(), ca_file=str(credentials / "ca.crt"))
        if config.parts == OWN_CONTROLLERS:
            config = msgspec.structs.replace(config, parts=ALL_CONTROLLERS)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hollow.run()), group.create_task(controllers.run(client, config))]
            try:
                yield ControlPlane(client, hollow, credentials, port, restart)
            finally:
                for task in (*tasks, *hollow.tasks):
                    task.cancel()
                await asyncio.gather(*tasks, *hollow.tasks, return_exceptions=True)
                await client.close()
                await kubelet_client.close()
                await servers[0].close()

    with hurried():
        yield start
