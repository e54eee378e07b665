"""The lifecycle hooks of a container: ``postStart`` and ``preStop``."""

from podwire.embedded.kubelet.execution import CommandContext, PodTarget
from podwire.embedded.kubelet.traffic import RequestOutcome, get_http, open_tcp, port_number
from podwire.model.pod import Container, LifecycleHandler
from podwire.runtime.clock import Clock

_TCP_S = 30.0


class Hooks:
    """Runs the hooks of one container's run."""

    def __init__(self, container: Container, context: CommandContext, target: PodTarget, clock: Clock) -> None:
        self._container = container
        self._context = context
        self._target = target
        self._clock = clock

    async def run(self, hook: LifecycleHandler, timeout_s: float) -> RequestOutcome:
        """Runs one hook to its end or for ``timeout_s``."""
        ports, address = self._container.ports, self._target.address
        if hook.exec is not None:
            return await self._target.execute(self._context, hook.exec.command, timeout_s)
        if hook.http_get is not None:
            return await get_http(hook.http_get, address, port_number(hook.http_get.port, ports), timeout_s)
        if hook.tcp_socket is not None:
            port = port_number(hook.tcp_socket.port, ports)
            return await open_tcp(hook.tcp_socket, address, port, min(timeout_s, _TCP_S))
        if hook.sleep is not None:
            await self._clock.sleep(min(timeout_s, float(hook.sleep.seconds)))
        return RequestOutcome(True)
