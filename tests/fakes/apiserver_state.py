"""What an API server of the unit tests finds at its start: certificates, keys, and the state of a first start.

The first start makes over a hundred objects, which takes three quarters of its time. One server of a run does that for
all: the others begin with a copy of its state.
"""

import asyncio
import datetime
from pathlib import Path

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.server import ApiServer
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.runtime.clock import SystemClock


def make_credentials(folder: Path) -> None:
    """Writes certificates and keys of an API server and its administrator."""
    now = datetime.datetime.now(datetime.UTC)
    authority = certificates.make_authority("test", now)
    certificates.write_pair(folder, "ca", authority)
    pair = certificates.issue(authority, "apiserver", (), ("127.0.0.1", "localhost"), "server", now)
    certificates.write_pair(folder, "server", pair)
    pair = certificates.issue(authority, "admin", ("system:masters",), (), "client", now)
    certificates.write_pair(folder, "admin", pair)
    certificates.write_private(folder / "signing.key", certificates.make_signing_key())


def settings_with(credentials: Path, state: Path, port: int = 0) -> ApiServerSettings:
    """Settings of a server on 127.0.0.1; it chooses port 0 itself."""
    return ApiServerSettings(
        listen=(f"127.0.0.1:{port}",),
        state=state,
        certificate=credentials / "server.crt",
        key=credentials / "server.key",
        client_ca=credentials / "ca.crt",
        signing_key=credentials / "signing.key",
    )


def fill(settings: ApiServerSettings) -> None:
    """Makes the state that a server has after its first start."""

    async def body() -> None:
        server = ApiServer(settings, SystemClock())
        try:
            await server.start()
        finally:
            await server.close()

    asyncio.run(body())
