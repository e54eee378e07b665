"""The supervisor as a daemon: what the process does that ``podwire up`` forks.

The daemon is forked twice and has a new session: its parent is init, it has no terminal, writes to
``<run>/log/supervisor.log`` and keeps no descriptor of the process that started it. The daemon is a keeper
(:mod:`podwire.runtime.keeper`) that forks the supervisor: a killed supervisor is replaced within about a second, and
the new supervisor adopts all processes. The supervisor starts the fork server before it has an event loop, so that
every component is a fork of one warm process.
"""

import asyncio
import os
import sys
from pathlib import Path

from podwire.embedded.apiserver import certificates
from podwire.local import builds, cgroup
from podwire.local.briefs import KEEPER, SUPERVISOR
from podwire.local.entries import ENTRIES, PREPARE
from podwire.local.supervisor import ClusterSupervisor
from podwire.local.topology import Topology
from podwire.observe import log
from podwire.runtime import child
from podwire.runtime.childrecord import record_self
from podwire.runtime.clock import SystemClock
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.keeper import keep_worker
from podwire.runtime.memory import importing


def become_daemon(topology: Topology, log_file: Path) -> None:
    """Runs in the first child: forks the daemon and ends. Neither process returns to the caller."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    status = 1
    try:
        _redirect(log_file)
        os.chdir("/")
        label = builds.own().label
        _keep(topology, label)
        serve(topology, label)
        status = 0
    finally:
        kind, failure, trace = sys.exc_info()
        if kind is not None and failure is not None:
            sys.excepthook(kind, failure, trace)
        os._exit(status)


def _redirect(log_file: Path) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, 1024)


def _keep(topology: Topology, label: str) -> None:
    """Makes this process the keeper; returns in each supervisor that it forks.

    The keeper joins the cluster's cgroup before it forks, so that keeper and supervisor are killed together.
    """
    cgroup.join(os.getpid(), cgroup.create(topology.name))
    child.set_title(f"podwire: keeper {topology.name}")
    record_self(record_of(topology).parent, KEEPER, label)
    keep_worker()


def serve(topology: Topology, label: str) -> None:
    """Runs the supervisor in this process until it is ended; ``label`` is that of its build."""
    log.configure("info")
    child.set_title(f"podwire: supervisor {topology.name}")
    replaced = record_of(topology).exists()
    record_self(record_of(topology).parent, SUPERVISOR, label)
    with importing():
        certificates.import_library()  # for this process and the API server
    title = f"podwire: fork server {topology.name}"
    fork_server = ForkServer.start(ENTRIES, title=title, prepare=PREPARE)
    asyncio.run(ClusterSupervisor(topology, fork_server, SystemClock(), label).run(resume=replaced))


def record_of(topology: Topology) -> Path:
    """The supervisor's record; the starter deletes it, so a supervisor that finds one replaces another."""
    return Path(topology.run) / "processes" / f"{SUPERVISOR}.json"
