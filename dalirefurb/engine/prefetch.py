"""Prefetch: how many copies of the pipelines work, and how far ahead.

    store told ─▶ files read ─▶ partial part ─▶ waiting ─▶ final part ─▶ handed over
    announced      admitted     partial_ahead    ready     look_ahead        1

The numbers below are of batch groups that are at each step at a time, at most. Where one step makes final images, those
that wait are final, and the next step is the last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from dalirefurb.augment.stage import Device
from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import integer
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.system.processes import local_processes
from dalirefurb.system.resources import Budget, budget_bytes, usable_cores

_MAX_REPLICAS = 8
_GPU_REPLICAS = 2
_FINAL_GROUPS = 3
_MORE_FINAL_GROUPS_ON_GPU = 2
_PARTIAL_GROUPS = 2
_KERNEL_GROUPS = 3
_ROWS_PER_GROUP = 256
_LEAST_ROWS_PER_GROUP = 128
_MOST_ROWS_PER_GROUP = 2048
_PIXELS_PER_GROUP = _ROWS_PER_GROUP * 224 * 224
_GROUPS_PER_EPOCH = 4
_ADMITTED_WITH_LAG = 2


@dataclass(frozen=True)
class Depths:
    """Numbers of threads, of copies and of batch groups that a loader works with, see `Prefetch`.

    Attributes:
        replicas: Number of copies of the partial part's pipeline, or of that of both parts.
        final_replicas: Number of copies of the final part's pipeline; `replicas` where both parts are one pipeline.
        threads_each: Number of CPU threads of each of `replicas`.
        batches_per_group: Largest number of batches that go through the graphs together.
        hits_per_group: Largest number of batches that do so where the plan has nothing to compute; at least
            `batches_per_group`.
        look_ahead: Number of groups in the final part at a time, finished ones included; a group of n times as many
            batches counts n times.
        ready: Number of groups whose partial images wait for the final part.
        admitted: Number of groups that are looked up, and whose files are read, before the groups enter the partial
            part, beside the groups that are in it.
        announced: Number of groups of which the store is told before their files are read, beside the `admitted` ones.
        read_ahead: Number of admitted groups that may have something to read, beside those for which the partial part
            has room.
        reading_threads: Number of threads that read files.
    """

    replicas: int
    final_replicas: int
    threads_each: int
    batches_per_group: int
    hits_per_group: int
    look_ahead: int
    ready: int = 2
    admitted: int = 8
    announced: int = 4
    read_ahead: int = 2
    reading_threads: int = 4

    @property
    def final_threads_each(self) -> int:
        """CPU threads of each of `final_replicas`: together they have as many as those of the partial part."""
        return -(-self.replicas * self.threads_each // self.final_replicas)

    @property
    def partial_ahead(self) -> int:
        """Groups of the partial part at a time: two per replica, and no more for each than the final part has."""
        return min(-(-self.look_ahead * self.replicas // self.final_replicas), _PARTIAL_GROUPS * self.replicas)

    @property
    def groups_made(self) -> int:
        """Groups whose images can be made, partly at least, before they are asked for."""
        return self.partial_ahead + self.ready + self.look_ahead + 1

    @property
    def batches_made(self) -> int:
        """Batches of these groups."""
        return self.groups_made * self.batches_per_group

    @property
    def batches_planned(self) -> int:
        """Batches that can be planned before they are asked for."""
        return self.batches_made + (self.admitted + self.announced) * self.batches_per_group


_MOST = 2**16
"""Of threads, and of what waits for them: no machine has as many, and a mistake would take its memory."""


@dataclass(frozen=True)
class Prefetch(metaclass=TakesNumbers):
    """How many threads work for a loader, and how far ahead. What is None is chosen by the loader.

    Attributes:
        num_threads: CPU threads of each part's pipelines; by default as many as there are cores that the process may
            use, by its affinity and the CPU quota of its control groups (containers, jobs).
        replicas: Copies of each part's pipeline; by default one per thread, at most 8, but 2 of a pipeline of which all
            is on a GPU. A pipeline runs one operator at a time, so several threads of one pipeline wait for each other,
            several pipelines do not; those on a GPU share it. With kernels one pipeline decodes, from four threads on
            two do, whatever their number.
        look_ahead: Batch groups in the final part at a time, finished ones included; by default three per replica, or
            two more than there are replicas if that part is on a GPU, three where kernels do both parts, with
            AutoAssist at most as many as its lag allows. With kernels and a store two groups per replica are in work at
            most, and a larger number changes nothing. A group takes the memory of its images: 154 MB for
            256 x 224 x 224 in float32.
        batches_per_group: Batches that go through the pipelines together; a group costs milliseconds however few its
            rows. By default as many as fit into 256 rows, of a source of arrays of one shape smaller than 224 x 224
            into as many more as take no more memory, up to 2,048, of images served larger than that into as many fewer,
            down to 128; with compiled kernels twice as many, up to 2,048, where all rows are hits; but no more than a
            quarter of an epoch, and with AutoAssist 1.
        reading_threads: Threads that read files.
        memory: The most that a loader takes of this machine's memory beside its store, "2GB", "10%" of what is
            available, or bytes; by default what is available. To fit, the loader has less on its way than it would
            choose: shorter groups, fewer of them, at last fewer replicas. What is chosen here is kept.

    Raises:
        ConfigurationError: If a number is not in 1..65536, or `memory` is no budget.
    """

    num_threads: int | None = None
    replicas: int | None = None
    look_ahead: int | None = None
    batches_per_group: int | None = None
    reading_threads: int = 4
    memory: Budget | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            budget_bytes(self.memory, available=lambda: 0)  # Refuses what is no budget.
        for field in fields(self)[:-1]:
            number = getattr(self, field.name)
            if number is not None or field.default is not None:
                integer(field.name, number, 1, _MOST, "pass a positive number, or leave it out")

    def depths(
        self,
        planner: Planner,
        *,
        pixels: int | None = None,
        served: int = 0,
        hits_together: bool = False,
        devices: tuple[Device, Device] = ("cpu", "cpu"),
        apart: bool = False,
        by_kernels: bool = False,
    ) -> Depths:
        """Fill in what is None.

        Args:
            planner: Planner of the batches, or of a rank's part of them.
            pixels: Pixels of a sample on its way, at most, where all samples are arrays of one shape: a group of small
                ones takes more of them. Of encoded images even 256 take long to decode, so None for these.
            served: Pixels of what a sample is served as, in all views: a group of large ones takes fewer of them.
            hits_together: Whether twice as many rows are together where nothing is to be computed: all that a group
                costs then, beside the final part, is Python's time.
            devices: Devices where the partial and the final part run.
            apart: Whether each part has pipelines of its own.
            by_kernels: Whether kernels do both parts on the CPU, all threads one group after the other: one is in work,
                and others wait.

        Raises:
            ConfigurationError: If an Assistant's lag is too short.
        """
        num_threads = self.num_threads or max(1, usable_cores() // local_processes())
        on_cpu = min(_MAX_REPLICAS, num_threads)
        replicas = self.replicas or (_GPU_REPLICAS if devices[0] == "gpu" else on_cpu)
        final_replicas, look_ahead = replicas, _FINAL_GROUPS * replicas
        if devices[1] == "gpu":
            final_replicas = self.replicas or (_GPU_REPLICAS if apart else replicas)
            look_ahead = final_replicas + _MORE_FINAL_GROUPS_ON_GPU
        if by_kernels:
            look_ahead = min(look_ahead, _KERNEL_GROUPS)
        together = self.batches_per_group or 1
        depths = Depths(
            replicas=replicas,
            final_replicas=final_replicas,
            threads_each=-(-num_threads // replicas),
            batches_per_group=together,
            hits_per_group=together,
            look_ahead=self.look_ahead or look_ahead,
            reading_threads=self.reading_threads,
        )
        if planner.feedback_lag is not None:
            depths = replace(depths, admitted=_ADMITTED_WITH_LAG, announced=0)
            return _within_lag(depths, planner.feedback_lag, adjustable=self.look_ahead is None)
        if self.batches_per_group is None:
            rows = _ROWS_PER_GROUP if pixels is None else _PIXELS_PER_GROUP // pixels
            rows = min(max(rows, _ROWS_PER_GROUP), _MOST_ROWS_PER_GROUP)
            rows = min(rows, max(_PIXELS_PER_GROUP // max(served, 1), _LEAST_ROWS_PER_GROUP))
            most = max(1, len(planner) // _GROUPS_PER_EPOCH)
            together = max(1, min(rows // planner.batch_size, most))
            of_hits = min(2 * rows, _MOST_ROWS_PER_GROUP) // planner.batch_size if hits_together else 0
            of_hits = min(of_hits, most, depths.look_ahead * together)
            depths = replace(depths, batches_per_group=together, hits_per_group=max(together, of_hits))
        return depths

    def of_volumes(self, planner: Planner) -> Depths:
        """Fill in what is None for volumes: a batch is a group, and threads take one volume after the other."""
        chosen = replace(self, batches_per_group=self.batches_per_group or 1, replicas=self.replicas or 1)
        return chosen.depths(planner, apart=True)

    @property
    def chosen(self) -> dict[str, int]:
        """What the user has chosen of the numbers that decide how much is on its way, by name."""
        names = ("replicas", "look_ahead", "batches_per_group")
        return {name: number for name in names if (number := getattr(self, name)) is not None}

    def smaller(self, depths: Depths) -> Depths | None:
        """Return depths that take less memory, the next ones by what that costs; None if there are none.

        What the user has chosen stays as it is.
        """
        a_replica_each = depths.final_replicas if depths.look_ahead >= depths.final_replicas else 1
        least = {"hits_per_group": depths.batches_per_group, "look_ahead": a_replica_each}
        for name in ("hits_per_group", "look_ahead", "ready", "batches_per_group", "replicas", "read_ahead"):
            number = getattr(depths, name)
            fewer = max(least.get(name, 1), number // 2)
            if fewer < number and name not in self.chosen:
                smaller = replace(depths, **{name: fewer})
                if name == "replicas":  # With as many threads in all.
                    threads_each = -(-number * depths.threads_each // fewer)
                    final_replicas = max(1, depths.final_replicas // 2)
                    smaller = replace(smaller, threads_each=threads_each, final_replicas=final_replicas)
                return smaller
        return None


def _within_lag(depths: Depths, lag: int, *, adjustable: bool) -> Depths:
    """Plan no batch before the losses that it depends on are there."""
    while adjustable and depths.look_ahead > 1 and depths.batches_planned >= lag:
        depths = replace(depths, look_ahead=depths.look_ahead - 1)
    if depths.batches_planned >= lag:
        least = replace(depths, look_ahead=1, batches_per_group=1).batches_planned + 1
        raise ConfigurationError(
            argument="lag",
            requirement=f"more than the {depths.batches_planned} batches planned ahead",
            given=f"{lag}",
            remedy=f"pass lag={depths.batches_planned + 1}",
            in_code="a smaller look_ahead or batches_per_group "
            f"(lag={least} is the least for look_ahead=1, batches_per_group=1)",
        )
    return depths
