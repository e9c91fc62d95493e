"""What earlier rounds accepted and published, as sketches: whoever contributes it again did not train it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.merging.sketch import WIDTH, cosines

FILE = "sketches.safetensors"  #: beside the report of a round
RESULT = ""  #: stands in the place of a name for what the round published
SEED = "sketch_seed"


def seed_of(ledger: Ledger) -> int:
    """Return the secret number that decides all sketches of a community, drawn once."""
    with ledger.writing() as rows:
        rows.execute("INSERT OR IGNORE INTO identity VALUES (?, ?)", (SEED, str(randbits(62))))
    return int(str(ledger.identity(SEED)))


@dataclass(frozen=True)
class Earlier:
    """Changes of earlier rounds, the oldest first."""

    rounds: list[int]
    members: list[str]  #: whose each was, or `RESULT`
    sketches: Tensor  #: fp64 `[changes, WIDTH]`

    @classmethod
    def of(cls, folder: Path, before: int, others: bool) -> Earlier:
        """Read those of the rounds before one, in the folder of all rounds: of results, and with `others` of members."""
        rounds, members, sketches = [], [], [torch.zeros(0, WIDTH, dtype=torch.float64)]
        for number in range(1, before):
            file = folder / str(number) / FILE
            if file.is_file():  # not where the base stayed, nor where sums of groups alone are known
                with safe_open(file, "pt") as held:
                    names, rows = json.loads(held.metadata()["members"]), held.get_tensor("sketches").double()
                kept = [row for row, name in enumerate(names) if others or name == RESULT]
                rounds += [number] * len(kept)
                members += [names[row] for row in kept]
                sketches.append(rows[kept])
        return cls(rounds, members, torch.cat(sketches))

    def copied(self, members: Sequence[str], sketches: Tensor, least: float) -> dict[str, str]:
        """Return whose changes are copies of earlier ones of others, with a cosine from `least` on, and of which.

        Of several that are as near, the oldest counts: who was the first may come with the same again.
        """
        near = cosines(sketches, self.sketches) >= least
        found = {}
        for name, row in zip(members, near, strict=True):
            first = next(iter(row.nonzero().flatten().tolist()), None)
            if first is not None and self.members[first] != name:
                what = f"what {self.members[first]} contributed to" if self.members[first] else "the result of"
                found[name] = f"it is a copy of {what} round {self.rounds[first]}"
        return found


def keep(folder: Path, members: Sequence[str], sketches: Tensor) -> None:
    """Write down the changes of a round: of its members, and of its result last where there is a sketch more."""
    names = [*members, RESULT][: len(sketches)]
    save_file({"sketches": sketches.float().contiguous()}, folder / FILE, {"members": json.dumps(names)})
