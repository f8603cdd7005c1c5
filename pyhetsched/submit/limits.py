"""What a request may hold before it is read: lengths and characters that every later step can work with.

The plugin takes values of 4096 bytes at most and none with control characters, and the host list that an owner
excludes goes into the AdminComment as well. Without a bound here an overlong request would get an answer that
the plugin cannot use, and cost all others the time that it takes to make it.
"""

from __future__ import annotations

from pyhetsched.errors import RequestError
from pyhetsched.model import ClusterView, SubmitRequest
from pyhetsched.slurm.hosts import most_names

LONGEST_BYTES = 1900
_FEW_NAMES = 1000

_OPTIONS = {
    "tres_per_node": "--gres",
    "tres_per_job": "-G",
    "tres_per_socket": "--gpus-per-socket",
    "tres_per_task": "--tres-per-task",
    "tres_bind": "--tres-bind",
    "cpus_per_tres": "--cpus-per-gpu",
    "mem_per_tres": "--mem-per-gpu",
    "features": "--constraint",
    "prefer": "--prefer",
    "required_nodes": "--nodelist",
    "excluded_nodes": "--exclude",
}


def beyond_limits(request: SubmitRequest, view: ClusterView) -> str:
    """Return the sentence that refuses ``request``, "" where it can be worked with."""
    for field, option in _OPTIONS.items():
        text: str = getattr(request, field)
        length = len(text.encode())
        if length > LONGEST_BYTES:
            shorter = ", such as a folded host list like gpu[01-20]" if field.endswith("_nodes") else ""
            return f"{option} has {length} bytes; write at most {LONGEST_BYTES}{shorter}"
        if any(ord(c) < 32 or ord(c) == 127 for c in text):
            return f"{option} holds a control character such as a line break; write it without"
        if field.endswith("_nodes") and _names(text) > max(_FEW_NAMES, len(view.nodes)):
            # To read so many takes longer than slurmctld waits.
            return f"{option} names {_names(text)} nodes, more than there are; write those that exist"
    return ""


def _names(hostlist: str) -> int:
    try:
        return most_names(hostlist)
    except RequestError:
        return 0  # Slurm will say so
