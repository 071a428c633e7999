"""Assembler: construction of a loader's engine when it is first needed, since it depends on the rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from dalirefurb.engine.build import Assembly
from dalirefurb.engine.prefetch import Depths
from dalirefurb.engine.rank import ALONE, Rank, present
from dalirefurb.errors import LoaderError, shortened
from dalirefurb.planning.planner import Planner
from dalirefurb.system.sharing import shared_by


class Assembler:
    """Puts a loader's parts together once, and closes them.

    A batch of one shard is mostly not divided, so where `shards` is 1 they are put together at once, and what cannot
    work is refused early. Otherwise that waits until the rank is needed: the store, the graphs and the device depend on
    it.

    Args:
        planner: Planner of the batches of all ranks.
        chosen: Rank that the caller gives; None if the caller gives none.
        choose_depths: Function that returns the `Depths` for a rank's part of the plan.
        assemble: Function that puts together what carries out a rank's part of the plan.

    Raises:
        ConfigurationError: If the shards cannot be divided among the ranks, or no rank could work so far ahead.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        chosen: Rank | None,
        choose_depths: Callable[[Planner], Depths],
        assemble: Callable[[Planner, Depths], Assembly],
    ) -> None:
        self._planner = planner
        self._chosen = chosen
        self._choose_depths = choose_depths
        self._assemble: Callable[[Planner, Depths], Assembly] | None = assemble
        self._rank = ALONE
        self._assembly: Assembly | None = None
        self._closed = False
        self._depths(planner)  # Refuses what no rank could work with.
        if chosen is not None:
            self._part(chosen)
        if planner.shards == 1 and not planner.any_world_size:
            self._begin(ALONE)

    @property
    def rank(self) -> Rank:
        """This process's rank: what the parts are, or would be, put together for."""
        return (self._chosen or present()) if self._assembly is None else self._rank

    @property
    def part(self) -> Planner:
        """Planner of what this rank carries out."""
        return self._part(self.rank)

    @property
    def divided(self) -> Planner:
        """What says into which batches an epoch is divided: the rank's part where the number of ranks decides it."""
        return self.part if self._planner.any_world_size else self._planner

    @property
    def depths(self) -> Depths:
        """How far ahead it does so; once the parts are together, what memory has room for."""
        return self._depths(self.part) if self._assembly is None else self._assembly.depths

    @property
    def assembly(self) -> Assembly | None:
        """The parts, if they are together already."""
        return self._assembly

    def get(self) -> Assembly:
        """Return the parts, put together for this rank.

        Raises:
            ConfigurationError: If the shards cannot be divided among the ranks.
            LoaderError: If it is closed, or the rank is another one than at first.
        """
        rank = self._chosen or present()
        if self._assembly is None:
            if self._closed:
                raise LoaderError("the loader is closed; make a new one")
            return self._begin(rank)
        if rank not in (self._rank, ALONE):
            self._part(rank)
            raise LoaderError(
                f"a loader's rank must not change, but it was first used as rank {self._rank.rank} of "
                f"{self._rank.world_size}, and now this process is rank {rank.rank} of {rank.world_size}: initialise "
                f"torch.distributed before the loader is used, or make a new one"
            )
        return self._assembly

    def shutdown(self) -> None:
        """Have the parts end by themselves, if there are any. Never waits."""
        self._closed = True
        self._assemble = None
        if self._assembly is not None:
            self._assembly.engine.shutdown()

    def close(self) -> None:
        """Close the parts, if there are any; twice is as once."""
        self._closed = True
        self._assemble = None
        if self._assembly is not None:
            self._assembly.engine.close()

    def _begin(self, rank: Rank) -> Assembly:
        part = self._part(rank)
        assert self._assemble is not None
        try:
            with self._sharing():
                self._assembly, self._rank = self._assemble(part, self._choose_depths(part)), rank
        except Exception as error:
            raise shortened(error)  # noqa: B904 - it is this one
        self._assemble = None  # It has the store, which would outlive the engine.
        return self._assembly

    def _depths(self, planner: Planner) -> Depths:
        with self._sharing():
            return self._choose_depths(planner)

    def _sharing(self) -> AbstractContextManager[None]:
        """Have cores and memory shared by as many processes as the caller says, if the caller says it."""
        return shared_by(None if self._chosen is None else self._chosen.local_world_size)

    def _part(self, rank: Rank) -> Planner:
        return self._planner.for_rank(rank=rank.rank, world_size=rank.world_size)
