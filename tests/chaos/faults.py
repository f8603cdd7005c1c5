"""The faults that the campaign injects: each strikes at random, most in the middle of something."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from site_control import DATABASE_DIR, NODE_STATE, Site

CREATE = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
DESTROY = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
ASK = ("nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances",
       "nvmlGpuInstanceGetInfo", "nvmlDeviceGetUUID", "nvmlGpuInstanceGetComputeInstances")  # fmt: skip
REFUSALS = ("4", "19", "23", "999")  # no permission, in use, insufficient resources, unknown
_MOST_ARMED = 14
_HURT_S = 15.0


class NoTarget(Exception):
    """There is nothing that this fault could strike at the moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``strike`` injects it and says what it did; ``armed`` ones strike at a later driver call."""

    name: str
    weight: float
    strike: Callable[[Site, random.Random], str]
    armed: bool = False


def _node(site: Site, rng: random.Random) -> str:
    return rng.choice(sorted(site.nodes))


def _arm(site: Site, rng: random.Random, call: str, *action: str) -> str:
    node = _node(site, rng)
    if len(site.driver(node)["faults"]) >= _MOST_ARMED:
        raise NoTarget
    site.arm(node, call, *action)
    return f"{node}: {call} {' '.join(action)}"


def kill_in_create(site: Site, rng: random.Random) -> str:
    """The prolog dies before or after a creating call."""
    return _arm(site, rng, rng.choice(CREATE), "--kill", rng.choice(("before", "after")))


def kill_in_destroy(site: Site, rng: random.Random) -> str:
    """The epilog (or a roll-back) dies before or after a destroying call, sometimes again and again."""
    count = rng.choice(("1", "1", "3"))
    return _arm(site, rng, rng.choice(DESTROY), "--kill", rng.choice(("before", "after")), "--count", count)


def kill_anywhere(site: Site, rng: random.Random) -> str:
    """Whoever makes one of the next calls of any kind dies in it."""
    skip = str(rng.randrange(120))
    return _arm(site, rng, "*", "--skip", skip, "--kill", rng.choice(("before", "after")))


def refuse_create(site: Site, rng: random.Random) -> str:
    """A creating call is refused, once or a few times."""
    return _arm(site, rng, rng.choice(CREATE), "--fail", rng.choice(REFUSALS), "--count", rng.choice(("1", "1", "3")))


def refuse_destroy(site: Site, rng: random.Random) -> str:
    """A destroying call is refused, once or a few times."""
    return _arm(site, rng, rng.choice(DESTROY), "--fail", rng.choice(REFUSALS), "--count", rng.choice(("1", "3")))


def in_use_for_long(site: Site, rng: random.Random) -> str:
    """"In use" that does not clear until the cluster is to settle."""
    return _arm(site, rng, "nvmlGpuInstanceDestroy", "--fail", "19", "--count", "50")


def refuse_question(site: Site, rng: random.Random) -> str:
    """A question to the driver fails."""
    return _arm(site, rng, rng.choice(ASK), "--fail", rng.choice(("4", "999", "15")))


def lie(site: Site, rng: random.Random) -> str:
    """The driver says success and does nothing."""
    return _arm(site, rng, rng.choice(CREATE + DESTROY), "--noop")


def stall(site: Site, rng: random.Random) -> str:
    """A call takes seconds."""
    return _arm(site, rng, rng.choice(CREATE + DESTROY), "--stall", f"{rng.uniform(0.5, 6):.1f}")


def stall_30_s(site: Site, rng: random.Random) -> str:
    """A call takes half a minute."""
    return _arm(site, rng, rng.choice(CREATE + DESTROY), "--stall", "30")


def stranger_holds(site: Site, rng: random.Random) -> str:
    """A process that is not the job's holds an instance for a while, perhaps in no process list."""
    node = _node(site, rng)
    made = [(gpu, item["gi"]) for gpu, item in site.instances(node)]
    if not made:
        raise NoTarget
    gpu, gi = rng.choice(made)
    words = ["--ci", "-1", "--for", f"{rng.uniform(1, 25):.1f}", *(["--hidden"] if rng.random() < 0.5 else [])]
    try:
        site.nvml(node, "hold", "--gpu", str(gpu), "--gi", str(gi), *words)
    except AssertionError as gone:
        raise NoTarget from gone
    return f"{node}: GPU {gpu} instance {gi} {' '.join(words)}"


def lose_gpu(site: Site, rng: random.Random) -> str:
    """A GPU falls off the bus for some seconds."""
    node = _node(site, rng)
    gpu, seconds = rng.randrange(site.nodes[node].gpus), rng.uniform(1, 8)
    site.nvml(node, "lost", "--gpu", str(gpu))
    site.hurt_until_s[node] = time.time() + seconds + _HURT_S
    site.later(seconds, "lost GPU", lambda: site.nvml(node, "lost", "--gpu", str(gpu), "--clear"))
    return f"{node}: GPU {gpu} for {seconds:.1f} s"


def kill_hook(site: Site, rng: random.Random) -> str:
    """kill -9 of a prolog or an epilog that is at work."""
    verb = rng.choice(("prolog", "epilog"))
    found = site.hooks_at_work(verb)
    if not found:
        raise NoTarget
    pid, node = rng.choice(found)
    time.sleep(rng.uniform(0, 0.3))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"{node}: {verb} {pid}"


def kill_daemon(site: Site, rng: random.Random) -> str:
    """kill -9 of hetschedd, back at once or after some seconds."""
    if not site.up("hetschedd"):
        raise NoTarget
    site.kill("hetschedd")
    seconds = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.5, 12)))
    site.later(seconds, "hetschedd", lambda: site.launch("hetschedd"))
    return f"hetschedd, back after {seconds:.1f} s"


def freeze_daemon(site: Site, rng: random.Random) -> str:
    """hetschedd stands still for some seconds."""
    if not site.up("hetschedd"):
        raise NoTarget
    seconds = rng.uniform(0.3, 12)
    site.send("hetschedd", signal.SIGSTOP)
    site.later(seconds, "hetschedd frozen", lambda: site.send("hetschedd", signal.SIGCONT))
    return f"for {seconds:.1f} s"


def fill_database(site: Site, rng: random.Random) -> str:
    """The daemon's database cannot grow."""
    if site.waits("database full"):
        raise NoTarget
    seconds = rng.uniform(0.5, 6)
    site.fill(DATABASE_DIR)
    site.later(seconds, "database full", lambda: site.make_room(DATABASE_DIR))
    return f"for {seconds:.1f} s"


def fill_node_disk(site: Site, rng: random.Random) -> str:
    """The nodes' own records cannot be written."""
    if site.waits("node disk full"):
        raise NoTarget
    seconds = rng.uniform(0.5, 4)
    site.fill(NODE_STATE)
    site.later(seconds, "node disk full", lambda: site.make_room(NODE_STATE))
    return f"for {seconds:.1f} s"


def restart_controller(site: Site, rng: random.Random) -> str:
    """slurmctld restarts in the middle of everything."""
    site.daemon("slurmctld").stop()
    site.start("slurmctld")
    return ""


def restart_slurmd(site: Site, rng: random.Random) -> str:
    """slurmd is killed or stopped on one node, and starts again; its jobs go on."""
    node, hard = _node(site, rng), rng.random() < 0.5
    if hard:
        site.kill(f"slurmd@{node}")
    else:
        site.daemon(f"slurmd@{node}").stop()
    site.start(f"slurmd@{node}")
    return f"{node}: {'kill -9' if hard else 'orderly'}"


def reboot_node(site: Site, rng: random.Random) -> str:
    """A node reboots: processes and instances gone, on Hopper the mode too."""
    node = _node(site, rng)
    site.hurt_until_s[node] = time.time() + _HURT_S
    site.reboot(node)
    return node


def odd_hook(site: Site, rng: random.Random) -> str:
    """For some seconds a node's epilog never runs, or a hook runs twice, also twice at the same time."""
    node = _node(site, rng)
    name, how = rng.choice((("epilog", "never"), ("epilog", "never"), ("epilog", "twice"), ("epilog", "together"),
                            ("prolog", "twice"), ("prolog", "together")))  # fmt: skip
    seconds = rng.uniform(1, 6)
    site.flag_hook(name, node, how)
    site.later(seconds, "hook", lambda: site.flag_hook(name, node, ""))
    return f"{node}: {name} {how} for {seconds:.1f} s"


CATALOGUE = (
    Fault("prolog killed in a creating call", 12, kill_in_create, armed=True),
    Fault("epilog killed in a destroying call", 12, kill_in_destroy, armed=True),
    Fault("hook killed in any call", 10, kill_anywhere, armed=True),
    Fault("creation refused", 8, refuse_create, armed=True),
    Fault("destruction refused", 8, refuse_destroy, armed=True),
    Fault("in use that stays", 2, in_use_for_long, armed=True),
    Fault("question refused", 6, refuse_question, armed=True),
    Fault("success that did nothing", 5, lie, armed=True),
    Fault("call stalled", 5, stall, armed=True),
    Fault("call stalled for 30 s", 0.3, stall_30_s, armed=True),
    Fault("instance held by a stranger", 6, stranger_holds),
    Fault("GPU off the bus", 4, lose_gpu),
    Fault("hook killed", 10, kill_hook),
    Fault("daemon killed", 8, kill_daemon),
    Fault("daemon frozen", 4, freeze_daemon),
    Fault("database full", 4, fill_database),
    Fault("node disk full", 3, fill_node_disk),
    Fault("slurmctld restarted", 2, restart_controller),
    Fault("slurmd restarted", 3, restart_slurmd),
    Fault("node rebooted", 2, reboot_node),
    Fault("hook never or twice", 6, odd_hook),
)
