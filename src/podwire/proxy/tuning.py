"""Kernel parameters and process settings that a node with Services needs: connection tracking and the OOM score."""

import os

from podwire.errors import KernelError
from podwire.kernel.process import adjust_oom_score
from podwire.observe.log import Log
from podwire.proxy import sysctls
from podwire.proxy.settings import ProxySettings


class Tuning:
    """Applies the settings that differ from the last ones; what the kernel refuses is logged, and stays."""

    def __init__(self) -> None:
        self._log = Log("proxy")
        self._applied: tuple[object, ...] | None = None

    def apply(self, settings: ProxySettings) -> None:
        """Applies the connection tracking settings and the OOM score of these settings."""
        values = (settings.conntrack, settings.oom_score_adj)
        if values == self._applied:
            return
        self._applied = values
        for problem in sysctls.apply(sysctls.plan(settings.conntrack, os.cpu_count() or 1)):
            self._log.info("cannot apply the connection tracking settings", problem=problem)
        try:
            adjust_oom_score(settings.oom_score_adj)
        except KernelError as problem:
            self._log.info("cannot lower the OOM score of this process", problem=problem)
