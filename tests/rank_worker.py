"""One process of several: serves its rows of some batches, as `torchrun` starts it. See test_ranks."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed

from dalirefurb import DiskStore, ImageFolder, Loader, Prefetch, Refurbish, simple

SIZE = 32
SHARDS = 8


def planner_for(source: ImageFolder) -> Refurbish:
    return Refurbish(len(source), batch_size=16, reuse_factor=3, seed=5, shards=SHARDS)


def main(root: str, out: str, steps: str) -> None:
    """Serve so many batches from where the state in `out` was taken; leave rows and state there, for each rank."""
    source, folder = ImageFolder(root), Path(out)
    rank = int(os.environ["RANK"])
    store = DiskStore(folder / f"cache-{rank}")
    with Loader(
        source, simple(SIZE), planner_for(source), store, prefetch=Prefetch(num_threads=1), with_indices=True
    ) as loader:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=800))
        state = folder / "state.json"
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        served = list(islice((batch for _ in range(100) for batch in loader), int(steps)))
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(counts, torch.tensor([len(served)]))
        assert {int(count) for count in counts} == {int(steps)}
        torch.save(served, folder / f"{rank}.pt")
        (folder / f"state-{rank}.json").write_text(json.dumps(loader.state_dict()))
    store.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
