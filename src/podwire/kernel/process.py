"""Settings of this process in the kernel."""

from pathlib import Path

from podwire.kernel.failure import refusal

_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")


def adjust_oom_score(value: int) -> None:
    """Sets how early the kernel ends this process and its children when memory is short: 1000 first, -1000 never.

    Raises: KernelError, for example when an unprivileged process lowers its value.
    """
    try:
        if int(_OOM_SCORE_ADJ.read_text()) != value:
            _OOM_SCORE_ADJ.write_text(str(value))
    except OSError as failure:
        raise refusal("write", f"{_OOM_SCORE_ADJ} = {value}", failure.errno or 0) from failure
