"""The relay's process: the module as a program, started by the data plane.

In a new relay, descriptor 3 is the listening socket for requests. When a relay continues as another program, an
environment variable names its memory. Keeper and worker are those of :mod:`podwire.runtime.keeper`. ``podwire proxy
relay`` runs the same processes in the foreground, for machines on which all processes that the agent starts end with
the agent's container.
"""

import hashlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from podwire.observe import log
from podwire.proxy.dataplanes.userspace.control import Control
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.memory import Memory
from podwire.proxy.dataplanes.userspace.messages import (
    SOCKET,
    Answer,
    Arrange,
    Ask,
    Drain,
    Renew,
    Renewing,
    Request,
    Retire,
    Retired,
    Show,
    State,
)
from podwire.proxy.dataplanes.userspace.recovery import Recovery
from podwire.proxy.dataplanes.userspace.relay import Relay
from podwire.runtime import keeper as keeping
from podwire.runtime.child import PR_SET_PDEATHSIG, prctl, set_title
from podwire.runtime.keeper import KEEPER_GONE, keep_descriptors, replace
from podwire.runtime.limits import raise_open_files

_PROGRAM = "import sys; sys.path.insert(0, {!r}); from podwire.proxy.dataplanes.userspace.process import main; main()"
ARGV = (sys.executable, "-c", _PROGRAM.format(str(Path(__file__).parents[4])))
"""The command line of this program; it names the folder of the package, since a relay of another build runs it."""
_MEMORY = "PODWIRE_RELAY"
_CONTROL = 3
_DESCRIPTORS = 1 << 20
_PER_CONNECTION = 4


def build() -> str:
    """The version of this program: a hash of its source text."""
    folder = Path(__file__).parent
    files = (*sorted(folder.glob("*.py")), Path(keeping.__file__))
    text = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(text).hexdigest()[:16]


class Worker:
    """The process that relays; the other one is the keeper."""

    def __init__(self, memory: int, control: int, *, stays: bool) -> None:
        self._memory = memory
        self._control = control
        self._stays = stays
        self._build = build()
        self._keeper = os.getpid()
        """The process id of the keeper, which runs this constructor."""

    def run(self) -> None:
        """Relays until the relay ends."""
        set_title("podwire relay")
        loop = Loop()
        relay = Relay(Memory(self._memory), loop, stays=self._stays)
        Recovery(relay).run({self._control})
        ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

        def end(_events: int) -> None:
            loop.ignore(ending)
            relay.drain()

        loop.watch(ending, READ, end)
        signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(ending, 1))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._control)
        Control(loop, listener, lambda request: self._serve(relay, loop, request))
        try:
            loop.run()
        finally:
            listener.detach()

    def _serve(self, relay: Relay, loop: Loop, request: Request) -> Answer:
        match request:
            case Arrange():
                return relay.arrange(request)
            case Retire():
                return relay.retire(request)
            case Drain():
                relay.drain()
                return Retired(())
            case Ask():
                return State(
                    build=self._build,
                    pid=os.getpid(),
                    keeper=os.getppid(),
                    ports=relay.ports,
                    connections=relay.connections,
                    sessions=relay.sessions,
                )
            case Show():
                return relay.show()
            case Renew():
                loop.later(0, lambda: self._renew(request.argv))
                return Renewing()

    def take_over(self) -> NoReturn:
        """The keeper has ended: becomes keeper and worker."""
        self._renew(ARGV)

    def _renew(self, argv: tuple[str, ...]) -> NoReturn:
        """Replaces this process by a program that becomes keeper and worker, and that ends the old keeper.

        Raises: OSError when the program cannot be started; the keeper then starts a worker as after a crash.
        """
        signal.signal(KEEPER_GONE, signal.SIG_IGN)
        state = (self._memory, self._control, int(self._stays), self._keeper)
        replace(argv, dict(os.environ) | {_MEMORY: " ".join(map(str, state))})


def main() -> NoReturn:
    """Becomes the keeper of a new relay, or of a relay that continues as this program."""
    state = os.environ.pop(_MEMORY, "")
    if state:
        memory, control, stays, keeper = (int(word) for word in state.split())
        prctl(PR_SET_PDEATHSIG, 0)
        if os.getppid() == keeper:
            os.kill(keeper, signal.SIGKILL)
        _keep(memory, control, stays=bool(stays))
    if os.fork():
        os._exit(0)
    _keep(Memory.create(raise_open_files(_DESCRIPTORS) // _PER_CONNECTION).fd, _CONTROL, stays=False)


def stay() -> NoReturn:
    """Becomes the keeper of a relay in the foreground, which does not end when it is idle.

    Raises: OSError when this network namespace already has a relay.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(16)
    _keep(Memory.create(raise_open_files(_DESCRIPTORS) // _PER_CONNECTION).fd, listener.detach(), stays=True)


def _keep(memory: int, control: int, *, stays: bool) -> NoReturn:
    log.configure()
    set_title("podwire relay keeper")
    worker = Worker(memory, control, stays=stays)
    keep_descriptors(worker.run, worker.take_over)


if __name__ == "__main__":
    main()
