"""Starts a cluster's supervisor as a daemon (:mod:`podwire.local.daemon`) when none runs."""

import os
from pathlib import Path

from podwire.errors import ClusterError
from podwire.local.control import CONTROL_SOCKET, answers
from podwire.local.topology import Topology
from podwire.runtime.memory import importing
from podwire.runtime.polling import wait_until

_ANSWER_WAIT_S = 15.0


def control_socket(topology: Topology) -> Path:
    """The path of the supervisor's control socket."""
    return Path(topology.run) / CONTROL_SOCKET


def ensure_supervisor(topology: Topology) -> bool:
    """Starts a supervisor when none answers; returns whether one was started.

    Raises: ClusterError when it does not come up.
    """
    sock = control_socket(topology)
    if answers(sock):
        return False
    with importing():  # here, since a cluster that runs has its supervisor
        from podwire.local import daemon

    log_file = Path(topology.run) / "log" / "supervisor.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    daemon.record_of(topology).unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        daemon.become_daemon(topology, log_file)
    os.waitpid(pid, 0)
    if not wait_until(lambda: answers(sock), within_s=_ANSWER_WAIT_S):
        raise ClusterError(f"the supervisor did not start in time; see its log {log_file}")
    return True
