"""``make bench``: what hetsched costs on the way of a job, measured on real daemons inside the testbed.

Prints the figures and writes ``build/bench/main_path.json``. Medians throughout: other work on the machine must not
decide. ``HETSCHED_BENCH_PAIRS`` (default 30) sets how often submits with and without the plugin are compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import hook_round_trip
import prolog_times
from prolog_times import SLURM_CONF, load, reconfigure

OUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "main_path.json"
PAIRS = int(os.environ.get("HETSCHED_BENCH_PAIRS", "30"))
SUBMITS = 300
PLUGIN = "JobSubmitPlugins=hetsched\n"
TARGETS = {
    "submit_ratio": (">=", 0.95),
    "hook_p99_ms": ("<", 5.0),
    "prolog_slice_p50_ms": ("<", 300.0),
    "prolog_plain_p50_ms": ("<", 10.0),
}


def main() -> int:
    """Measure everything; 0 once all has been measured, whatever the figures."""
    if os.environ.get("HETSCHED_TESTBED_RUN") != "1":
        sys.stderr.write("the bench needs its cluster: make bench\n")
        return 2
    figures: dict[str, Any] = {"load_before": round(load(), 2), "cpus": os.cpu_count()}
    for part in (hook_figures, submit_figures, prolog_figures):
        figures |= part()
        sys.stderr.write(f"{part.__name__} done\n")
    figures |= {"load_after": round(load(), 2), "slurm": slurm_version()}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=1) + "\n")
    show(figures)
    return 0


def hook_figures() -> dict[str, Any]:
    """Round trips on the hook socket while the daemon is otherwise idle."""
    times_ms = sorted(1000 * seconds for seconds in hook_round_trip.measure())
    return {
        "hook_p50_ms": round(statistics.median(times_ms), 3),
        "hook_p99_ms": round(times_ms[int(0.99 * len(times_ms))], 3),
        "hook_n": len(times_ms),
    }


def submit_figures() -> dict[str, Any]:
    """Submits per second with the plugin over without it: pairs in changing order, the median of their ratios."""
    arms: dict[str, list[dict[str, Any]]] = {"plugin": [], "bare": []}
    allow_many_jobs()
    with submitter() as client:
        for number in range(-1, PAIRS):
            for arm in ("plugin", "bare") if number % 2 else ("bare", "plugin"):
                set_plugin(arm == "plugin")
                result = ask(client, arm)
                if number >= 0:  # the first pair warms up
                    arms[arm].append(result)
                clear_queue()
    set_plugin(True)
    ratios = [bare["total_s"] / ours["total_s"] for ours, bare in zip(arms["plugin"], arms["bare"], strict=True)]
    return {
        "submit_ratio": round(statistics.median(ratios), 3),
        "submit_ratio_fastest": round(fastest(arms["bare"]) / fastest(arms["plugin"]), 3),
        "submit_ratios": [round(ratio, 3) for ratio in ratios],
        "submit_per_s_plugin": round(statistics.median(SUBMITS / item["total_s"] for item in arms["plugin"])),
        "submit_per_s_bare": round(statistics.median(SUBMITS / item["total_s"] for item in arms["bare"])),
        "submit_added_ms": {kind: added_ms(arms, kind) for kind in arms["bare"][0]["each_s"]},
        "submit_n": f"{PAIRS} pairs of {SUBMITS}",
        "submit_mix": "of 10 jobs: 5 without GPU, 1 gpu:1, 1 gpu:v100:2, 1 gpu:a100:1, 2 slices 1g.10gb",
    }


def fastest(items: list[dict[str, Any]]) -> float:
    """The least time that the submits of one phase took: what other work on the machine disturbs least."""
    return min(float(item["total_s"]) for item in items)


def added_ms(arms: dict[str, list[dict[str, Any]]], kind: str) -> float:
    """What the plugin adds to the median submit of one kind of job."""
    each_s = {arm: [float(s) for item in items for s in item["each_s"][kind]] for arm, items in arms.items()}
    return round(1000 * (statistics.median(each_s["plugin"]) - statistics.median(each_s["bare"])), 3)


def submitter() -> subprocess.Popen[str]:
    """The one process that submits, as alice."""
    argv = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--", sys.executable,
            str(Path(__file__).parent / "submit_client.py")]  # fmt: skip
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/tmp",
                            env={"PATH": "/usr/bin:/bin", "HOME": "/home/alice", "USER": "alice"})  # fmt: skip


def ask(client: subprocess.Popen[str], arm: str) -> dict[str, Any]:
    """Have it submit."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{arm} {SUBMITS}\n")
    client.stdin.flush()
    line = client.stdout.readline()
    if not line:
        raise ConnectionError("the submitting process has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer


def allow_many_jobs() -> None:
    """Have slurmctld remember more jobs than the 10,000 of its default: those that ended stay for minutes."""
    SLURM_CONF.write_text(f"{SLURM_CONF.read_text()}\nMaxJobCount=100000\n")
    subprocess.run(["testbedctl", "restart", "slurmctld"], check=True, capture_output=True)
    reconfigure()


def set_plugin(on: bool) -> None:
    """Load the plugin, or not."""
    text = SLURM_CONF.read_text()
    commented = f"#{PLUGIN}"
    changed = text.replace(commented, PLUGIN) if on else text.replace(commented, PLUGIN).replace(PLUGIN, commented)
    SLURM_CONF.write_text(changed)
    reconfigure()
    time.sleep(1.0)


def clear_queue() -> None:
    """Cancel everything and wait until it is gone."""
    subprocess.run(["scancel", "-u", "alice"], check=True)
    prolog_times.wait_for_epilog()


def prolog_figures() -> dict[str, Any]:
    """What the hooks add to the start of a job."""
    added_s, nvml_s, plain_s = prolog_times.measure()
    return {
        "prolog_slice_p50_ms": round(1000 * statistics.median(added_s), 1),
        "prolog_slice_nvml_p50_ms": round(1000 * statistics.median(nvml_s), 1),
        "prolog_slice_n": len(added_s),
        "prolog_plain_p50_ms": round(1000 * statistics.median(plain_s), 2),
        "prolog_plain_n": len(plain_s),
    }


def slurm_version() -> str:
    """Which Slurm it was."""
    return subprocess.run(["scontrol", "--version"], capture_output=True, text=True).stdout.strip()


def show(figures: dict[str, Any]) -> None:
    """Print the figures, those with a target beside it."""
    for name, value in figures.items():
        wanted = ""
        if name in TARGETS:
            sign, target = TARGETS[name]
            met = value >= target if sign == ">=" else value < target
            wanted = f"   wanted {sign} {target:g}: {'met' if met else 'NOT MET'}"
        print(f"{name:26} {value}{wanted}")


if __name__ == "__main__":
    sys.exit(main())
