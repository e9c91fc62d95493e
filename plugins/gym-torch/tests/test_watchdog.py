"""Who is taken to be gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from gym_torch import DDP
from gym_torch.distributed.watchdog import FAILURE, Watch


@pytest.mark.parametrize("said", [True, False])
def test_a_process_that_ends_while_it_is_looked_at_is_gone_unless_it_said_that_it_is_done(
    said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    watch = Watch(store, 0, 2, DDP(), tmp_path)

    def ended(rank: int) -> bool:
        if rank == 1 and said:
            store.set("done/1", "1")
        return rank == 0

    monkeypatch.setattr(watch, "_alive", ended)
    watch.closing.set()  # it looks once
    watch.run()
    assert store.check([FAILURE]) is not said
