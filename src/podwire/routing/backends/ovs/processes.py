"""The processes of a node's own Open vSwitch: a database server, and the switch (pure).

All files and sockets are in one directory, so neither another node of the machine nor an Open vSwitch of the machine
itself is touched. A database that another version wrote, or that cannot be read, is made anew: all of its content
follows from the plan.

A shell stands between the agent and ovs-vswitchd. On SIGTERM it has ovs-vswitchd remove its datapath, which a signal
to ovs-vswitchd itself would leave in the kernel. When the shell is killed, ovs-vswitchd runs on, and the next shell
watches the same process. ovs-vswitchd starts with ``flow-restore-wait``, which :mod:`podwire.kernel.ovs` removes when
the flows are written: until then the kernel's datapath keeps its flows.

In the first 10 seconds after boot ovs-vswitchd counts no processor, takes no packet of a new flow from the kernel's
datapath, and may go on so (lib/ovs-thread.c, ``COUNT_CPU_UPDATE_TIME_MS``). It is started later than that.
"""

from podwire.routing.backend import CARRIER_NICENESS
from podwire.routing.nodes import LocalNode
from podwire.runtime.program import Child

DATABASE, SWITCH = "podwire-ovsdb", "podwire-vswitchd"
"""The names of the two children."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
_SERVE_DATABASE = """\
mkdir -p "$1" || exit 1
if [ "$(ovsdb-tool needs-conversion "$1/conf.db" "$2" 2>/dev/null)" != no ]; then
    rm -f "$1/conf.db"
    ovsdb-tool create "$1/conf.db" "$2" || exit 1
fi
exec ovsdb-server "$1/conf.db" --remote="punix:$1/db.sock" --unixctl="$1/ovsdb.ctl" --no-chdir \\
    -vsyslog:off -vconsole:warn
"""
_RUN_SWITCH = """\
export OVS_RUNDIR="$1"
answers() { ovs-appctl -t "$1/vswitchd.ctl" version >/dev/null 2>&1; }
end() { ovs-appctl -t "$1/vswitchd.ctl" exit --cleanup >/dev/null 2>&1; exit 0; }
trap 'end "$1"' TERM
until [ -S "$1/db.sock" ]; do sleep 0.05; done
while read -r up _ </proc/uptime && [ "${up%%.*}" -lt 11 ]; do sleep 0.2; done
if ! answers "$1"; then
    ovs-vsctl --no-wait --timeout=10 --db="unix:$1/db.sock" init -- \\
        set open . other_config:flow-restore-wait=true || exit 1
    ovs-vswitchd "unix:$1/db.sock" --unixctl="$1/vswitchd.ctl" --pidfile="$1/vswitchd.pid" --no-chdir \\
        -vsyslog:off -vconsole:warn &
    wait $!
    exit
fi
while answers "$1"; do
    sleep 0.2 &
    wait $!
done
"""


def directory(me: LocalNode) -> str:
    """The directory of the files and sockets."""
    return f"{me.run_dir}/ovs"


def processes(me: LocalNode) -> tuple[Child, ...]:
    """The two children, in the order in which they start."""
    folder = directory(me)
    return (
        Child(
            name=DATABASE,
            argv=("/bin/sh", "-c", _SERVE_DATABASE, DATABASE, folder, _SCHEMA),
            environment={"PATH": _PATH},
            log=f"{me.run_dir}/ovsdb.log",
            restart_by="kill",
        ),
        Child(
            name=SWITCH,
            argv=("/bin/sh", "-c", _RUN_SWITCH, SWITCH, folder),
            environment={"PATH": _PATH},
            log=f"{me.run_dir}/vswitchd.log",
            restart_by="kill",
            niceness=CARRIER_NICENESS,
        ),
    )
