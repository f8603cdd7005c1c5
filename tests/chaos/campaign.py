#!/usr/bin/env python3
"""The random fault campaign: jobs flow, faults strike, the cluster settles, the invariants are checked.

Runs inside the testbed (``make chaos``). The environment sets CHAOS_SEED (random), CHAOS_FAULTS (stop after so
many) and CHAOS_MINUTES (default 10; 120 with CHAOS_FAULTS). The choice of faults, nodes, sizes and pauses follows
the seed; what a fault meets depends on the machine. The last line counts; the exit status is 1 unless all is 0.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faults import CATALOGUE, Fault, NoTarget  # noqa: E402
from invariants import Invariants, Tally  # noqa: E402
from site_control import Site  # noqa: E402  (it makes the other rooms importable)
from stream import Stream, queue  # noqa: E402

_BATCH = 110
_BATCH_S = 90.0
_PAUSE_S = 0.12
_DRAIN_S = 150.0
_RECONCILE_EVERY_S = 15.0
_BACKLOG = 16
_CANCEL = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the campaign goes on, and by which seed."""

    seed: int
    faults: int
    minutes: float

    @classmethod
    def of_environment(cls) -> Plan:
        """Read the variables; ValueError for one that is no number."""
        seed = os.environ.get("CHAOS_SEED") or str(secrets.randbelow(1_000_000))
        faults = int(os.environ.get("CHAOS_FAULTS") or 0)
        minutes = float(os.environ.get("CHAOS_MINUTES") or (120 if faults else 10))
        return cls(int(seed), faults, minutes)


class Campaign:
    """One run; `run` returns the tally."""

    def __init__(self, plan: Plan, site: Site, log: TextIO) -> None:
        self.plan = plan
        self._site = site
        self._log = log
        self._rng = random.Random(plan.seed)
        self.stream = Stream(random.Random(plan.seed + 1), _BACKLOG)
        self.tally = Tally()
        self._invariants = Invariants(site, self.stream, self.tally, random.Random(plan.seed + 2))
        self._started_s = time.monotonic()
        self.struck = 0
        self.kinds: Counter[str] = Counter()

    def run(self) -> Tally:
        """Inject faults batch by batch until time or number is reached."""
        self.note(f"seed {self.plan.seed}")
        while not self._over():
            self._batch()
            self._settle()
        return self.tally

    def note(self, text: str) -> None:
        """Write a line with the time into the log."""
        self._log.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._started_s:8.2f} {text}\n")
        self._log.flush()

    def _over(self) -> bool:
        late = time.monotonic() - self._started_s > self.plan.minutes * 60
        return late or bool(self.plan.faults and self.struck >= self.plan.faults)

    def _batch(self) -> None:
        until_s = time.monotonic() + _BATCH_S
        wanted = min(_BATCH, self.plan.faults - self.struck) if self.plan.faults else _BATCH
        injected, next_s = 0, time.monotonic() + 2.0
        self._site.armed = 0
        while injected < wanted and time.monotonic() < until_s:
            self._site.mend()
            if self._site.up("hetschedd") and self._site.up("slurmctld"):
                self.stream.feed(3)
            if time.monotonic() >= next_s:
                injected += self._strike()
                next_s = time.monotonic() + self._rng.expovariate(1 / _PAUSE_S)
            if self._rng.random() < _CANCEL:
                self.note(f"user cancels job {self.stream.cancel_one()}")
            self._show(injected)
            time.sleep(0.1)
        self.struck += injected

    def _strike(self) -> int:
        """Inject one fault; return 1, or 0 where it found nothing to strike."""
        fault: Fault = self._rng.choices(CATALOGUE, [fault.weight for fault in CATALOGUE])[0]
        try:
            what = fault.strike(self._site, self._rng)
        except NoTarget:
            return 0
        self.kinds[fault.name] += 1
        self.note(f"fault: {fault.name}: {what}")
        return 1

    def _settle(self) -> None:
        """End all disturbances, let the cluster come to rest, and judge it."""
        self._wait_for_the_armed()
        idle = self._site.heal()
        self.struck -= idle
        self.note(f"settling; {idle} armed faults met no call and do not count; {self.struck} so far")
        deadline_s, reconciled_s = time.monotonic() + _DRAIN_S, float("-inf")
        while queue() and time.monotonic() < deadline_s:
            if time.monotonic() - reconciled_s > _RECONCILE_EVERY_S:
                self._site.reconcile()
                reconciled_s = time.monotonic()
            self._show(0)
            time.sleep(0.3)
        self._site.reconcile()
        for line in self._invariants.check():
            self.note(f"VIOLATION {line}")
            print(f"\nchaos: {line[:300]}", file=sys.stderr)
        self.note(self.tally.summary(self.struck))
        self._show(0, end="\n")

    def _wait_for_the_armed(self) -> None:
        """Let jobs go on for some seconds so that armed faults meet a call."""
        until_s = time.monotonic() + 12.0
        while time.monotonic() < until_s:
            self._site.mend()
            if not any(self._site.driver(node)["faults"] for node in self._site.nodes):
                return
            if self._site.up("hetschedd") and self._site.up("slurmctld"):
                self.stream.feed(3)
            time.sleep(0.5)

    def _show(self, injected: int, end: str = "") -> None:
        if not sys.stdout.isatty() and not end:
            return
        minutes = (time.monotonic() - self._started_s) / 60
        text = (
            f"{minutes:5.1f} min  faults {self.struck + injected}  jobs {self.stream.submitted}  "
            f"waiting {len(self.stream.open)}  violations {len(self.tally.violations())}"
        )
        sys.stdout.write(f"\r{text:<100}{end}" if sys.stdout.isatty() else f"{text}{end}")
        sys.stdout.flush()


def main() -> int:
    """Run the campaign that the environment describes."""
    plan = Plan.of_environment()
    folder = Path(os.environ.get("CHAOS_LOGS") or "build/chaos")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{plan.seed}.log"
    print(f"chaos: seed {plan.seed}; each fault and its time in {path}", flush=True)
    with open(path, "w", encoding="utf-8") as log:
        campaign = Campaign(plan, Site(), log)
        tally = campaign.run()
        for name, count in campaign.kinds.most_common():
            campaign.note(f"injected {count:5} x {name}")
        more = (
            f"cancelled by users {tally.cancelled}, ended with their GPU {tally.died_with_their_gpu}, "
            f"refused at submit {campaign.stream.refused}, not told in the record {len(tally.untold)}"
        )
        campaign.note(f"{more}\n{tally.summary(campaign.struck)}")
    print(f"chaos: {more}")
    print(tally.summary(campaign.struck))
    return 1 if tally.violations() else 0


if __name__ == "__main__":
    sys.exit(main())
