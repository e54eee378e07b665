"""Keeps the CNI program and the network configuration where the container runtime looks for them.

1. The program is installed at the start, also under the names of other plugins that it replaces, and as ``loopback``
and as chained plugins where there are no such plugins. 2. The configuration
is written when pods can be added for the first time: a runtime reports the node as ready as soon as it finds the file.
It is never removed, since without it a runtime cannot delete pods either. 3. What is missing or changed comes back
within :data:`CHECK_S`. 4. A directory that cannot be written is logged once and tried again.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.cni import program
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

CHECK_S = 2.0
_CONFIGURATION = "10-podwire.conflist"


class CniFiles:
    """The files that podwire installs for the container runtime."""

    def __init__(self, config: AgentConfig, clock: Clock) -> None:
        self._section = config.cni
        self._clock = clock
        self._log = Log("cni")
        self._problem = ""
        self._before: object = None
        """The fingerprint of the programs at the last check."""
        self._verified: object = None
        """The fingerprint with which they need not be read again."""

    def install_program(self) -> None:
        """Installs the program if the configuration names a directory.

        Raises: OSError.
        """
        if self._section.bin_dir:
            program.install(self._section.bin_path)
            for name in self._stand_ins():
                program.install(self._section.bin_path, name)
            for name in self._section.also_as:
                program.replace_foreign(self._section.bin_path, name)

    def try_to_install(self) -> None:
        """As :meth:`install_program`; a failure is logged, and the files are tried again."""
        self._try(self.install_program)

    async def run(self, served: Callable[[], Awaitable[object]]) -> None:
        """Keeps the files until cancelled; the configuration from when ``served`` returns."""
        await served()
        while True:
            self._keep()
            await self._clock.sleep(CHECK_S)

    async def keep_program(self) -> None:
        """Keeps only the program, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_S)
            self._try(self._keep_program)

    def _keep(self) -> None:
        self._try(self._keep_program)
        if self._section.conf_dir:
            self._try(self._keep_configuration)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as failure:
            if str(failure) != self._problem:
                self._problem = str(failure)
                self._log.warning("cannot install the files for the container runtime; trying again", problem=failure)

    def _keep_program(self) -> None:
        if not self._section.bin_dir:
            return
        fingerprint = program.fingerprint(self._section.bin_path, self._section.also_as)
        if fingerprint == self._verified:
            return
        # A second change within one tick of the kernel's clock leaves the times as they are: two checks have to agree.
        self._verified, self._before = fingerprint if fingerprint == self._before else None, fingerprint
        names = (program.NAME, *self._stand_ins(), *self._section.also_as)
        if not all(program.is_installed(self._section.bin_path, name) for name in names):
            self._verified = None
            self.install_program()
            self._log.info("installed the CNI program", path=self._section.bin_dir)

    def _stand_ins(self) -> tuple[str, ...]:
        """The names of plugins that are missing, or that podwire's program is already."""
        return tuple(name for name in program.STAND_INS if program.is_free(self._section.bin_path, name))

    def _keep_configuration(self) -> None:
        path = Path(self._section.conf_path, _CONFIGURATION)
        if not path.exists() or path.read_bytes() != self._section.conflist:
            program.write_configuration(path.parent, self._section.conflist, path.name)
            self._log.info("wrote the network configuration", path=str(path))
