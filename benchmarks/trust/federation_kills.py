"""Kill the sites of a federation at random moments and see whether it ends as if nothing had happened.

    python benchmarks/trust/federation_kills.py flower|nvflare [--kills 50] [--minutes 25] [--seed 0]

The examples of Flower or NVFlare as processes on this machine: three sites, seeded, and a server that waits for all of
them: it sends the same weights again while one is missing. Sites are killed with SIGKILL and started again; of NVFlare
also the whole job, which is begun again from the server's last model. At the end the server's weights after every
round, and each site's model, statement and ledger, must be those of a run without kills, byte for byte.
`pip install 'sfumato[flower,nvflare]' psutil` in an environment that is active. Writes results/federation-kills.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.federations import FRAMEWORKS, SITES, STEPS, Federation, paid
from sfumato import owner_key
from sfumato.privacy import ledger
from sfumato.runs import verify

RESULT = RESULTS / "federation-kills.json"
ROUNDS, SHARE, JOBS = 5, 0.8, 0.1
"""Rounds of a run; the share of processes that are killed, until there were enough in a round; the share of kills that
are a whole job's, where a job can begin again."""
POLL, PAUSE = 0.1, 0.5
"""Seconds between two looks, and by which each step takes longer."""
IN_STEPS, AROUND = "between the first and the last step of a round", "before the first or after the last"


@dataclass(kw_only=True)
class Death:
    """When a site's process is to be killed: so many seconds after its start, or after a number of its steps."""

    steps: int
    delay: float
    since: float | None = None

    def is_due(self, steps: int) -> bool:
        """Whether the moment has come, where the site has taken so many steps."""
        if self.since is None and steps >= self.steps:
            self.since = time.monotonic()
        return self.since is not None and time.monotonic() >= self.since + self.delay


@dataclass
class Reaper:
    """Decides on each process of a site, once it is seen, whether and when it is killed.

    Args:
        dice: decides.
        wanted: the number of kills, spread evenly over the rounds.
        until: no kills after this moment of the monotonic clock.
    """

    dice: random.Random
    wanted: int
    until: float
    seconds: float = 10.0
    kills: Counter = field(default_factory=Counter)
    moments: Counter = field(default_factory=Counter)
    seen: dict[int, tuple[psutil.Process, float, Death | None]] = field(default_factory=dict)

    def look(self, federation: Federation, site: int) -> None:
        """Kill the site's process if its moment has come."""
        process, steps = federation.process(site), paid(federation.run(site))
        known = self.seen.get(site)
        if known and (process is None or known[0] != process):
            self.seconds = 0.8 * self.seconds + 0.2 * (time.monotonic() - known[1])
            del self.seen[site]
        if process and site not in self.seen:
            self.seen[site] = process, time.monotonic(), self._death(steps, len(federation.rounds()))
        death = self.seen[site][2] if site in self.seen else None
        early = self.kills.total() < self.wanted * (len(federation.rounds()) + 1) / ROUNDS
        if death and early and time.monotonic() < self.until and death.is_due(steps):
            what = "job" if federation.can_begin_again and self.dice.random() < JOBS else "site"
            federation.begin_again() if what == "job" else federation.kill(site)
            self.kills[what] += 1
            self.moments[IN_STEPS if paid(federation.run(site)) % STEPS else AROUND] += 1
            print(f"{time.strftime('%H:%M:%S')} {what} {site} killed at step {steps}: {self.kills.total()}", flush=True)
            self.seen.clear() if what == "job" else self.seen.pop(site)

    def _death(self, steps: int, rounds: int) -> Death | None:
        if self.dice.random() > SHARE:
            return None
        if steps == (rounds + 1) * STEPS or self.dice.random() < 1 / 3:  # nothing is left but to repeat the answer
            return Death(steps=0, delay=self.dice.uniform(0, self.seconds))
        return Death(steps=steps + self.dice.randint(1, STEPS), delay=self.dice.uniform(0, PAUSE))


def whole(federation: Federation, reaper: Reaper) -> float:
    """A run to its end, with kills. Gives its seconds."""
    began = time.monotonic()
    with contextlib.closing(federation):
        federation.begin()
        while len(federation.rounds()) < ROUNDS:
            for site in range(SITES):
                reaper.look(federation, site)
            federation.check()
            time.sleep(POLL)
        federation.conclude()
    return time.monotonic() - began


def left_behind(directory: Path) -> dict[str, object]:
    """What a site has at the end, as far as it must be the same with and without kills."""
    entries = ledger.read(directory / "ledger.jsonl")
    return {
        "model": (directory / "model.safetensors").read_bytes(),
        "statement": (directory / "statement.json").read_bytes(),
        "ledger": [(entry.kind, entry.body) for entry in entries[1:]],  # the first has a salt of the run's own
    }


def main() -> int:
    """Both runs; exit status 1 unless they end in the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("--kills", type=int, default=50, help="how many are killed (default: 50)")
    parser.add_argument("--minutes", type=float, default=25, help="no kills after so many (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments (default: 0)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SFUMATO_HOME"] = f"{scratch}/home"
        owner_key()  # which the seeded keys of all sites come from, so it must be there before them
        places = [Path(scratch, name) for name in ("whole", "killed")]
        federations = [FRAMEWORKS[given.framework](place, ROUNDS, PAUSE) for place in places]
        whole(federations[0], Reaper(random.Random(0), 0, 0.0))
        reaper = Reaper(random.Random(given.seed), given.kills, time.monotonic() + 60 * given.minutes)
        seconds = whole(federations[1], reaper)
        first, second = ([left_behind(one.run(site)) for site in range(SITES)] for one in federations)
        pairs = list(zip(first, second, strict=True))
        outcome = {
            "kills": dict(reaper.kills),
            "moments": dict(reaper.moments),
            "rounds": ROUNDS,
            "steps_a_round": STEPS,
            "requests": federations[1].requests(),
            "server_same_weights_after_each_round": federations[0].rounds() == federations[1].rounds(),
            **{f"sites_same_{name}": sum(a[name] == b[name] for a, b in pairs) for name in first[0]},
            "sites_that_verify": sum(verify(federations[1].run(site)).holds for site in range(SITES)),
            "lost_steps": sum(
                len(ledger.lost_steps(ledger.read(federations[1].run(site) / "ledger.jsonl"), ROUNDS * STEPS))
                for site in range(SITES)
            ),
            "seed": given.seed,
            "seconds": round(seconds),
            "version": federations[0].version,
        }
    same = [outcome[name] == SITES for name in outcome if name.startswith("sites_")]
    holds = all(same) and outcome["server_same_weights_after_each_round"] and not outcome["lost_steps"]
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(record | {given.framework: outcome}, indent=2, sort_keys=True) + "\n")
    print(json.dumps(outcome, indent=2), "holds" if holds else "FAILS")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
