"""Reads the state of the sessions of the node's BIRD through its control socket."""

from pathlib import Path

from podwire.bgp.process import BIRDCL
from podwire.bgp.sessionstate import SessionState, parse_sessions
from podwire.runtime.child import run

_TIMEOUT_S = 5.0


async def read_sessions(run_dir: str) -> tuple[SessionState, ...]:
    """All sessions; none while BIRD does not run or does not answer."""
    control = Path(run_dir, "bird.ctl")
    if not control.exists():
        return ()
    try:
        done = await run((BIRDCL, "-s", str(control), "show", "protocols", "all"), env={}, timeout_s=_TIMEOUT_S)
    except OSError:
        return ()
    return parse_sessions(done.output.decode(errors="replace")) if done.code == 0 else ()
