"""Runs of training, drawn at random: what each should be trained on, whichever trainer does it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.trainers.streams import BATCH_SIZE, EPOCHS, NUM_SAMPLES, Step, plain_loop, training_loader

BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)


@dataclass(frozen=True)
class Run:
    """What a trainer is asked to do; steps are the optimizer's.

    Attributes:
        asked: Where the number of steps is asked for, as OneCycleLR needs it; None: nowhere.
        limit: Batches of an epoch that are trained on.
        validated: Batches between validations; None: after each epoch; 0: never.
        accumulated: Batches of a step.
        max_steps: Steps to the end; None: epochs count.
        stopped: Steps after which training is told to stop; None: it is not.
        reloaded: Whether loaders are asked for in each epoch.
    """

    asked: str | None = None
    limit: int = BATCHES
    validated: int | None = None
    accumulated: int = 1
    max_steps: int | None = None
    stopped: int | None = None
    reloaded: bool = False

    def expected(self, stream: list[Step]) -> list[Step]:
        """Return the batches that are trained on, of a plain loop's."""
        trained, steps, end = [], 0, min(self.max_steps or 1000, self.stopped or 1000)
        for epoch in range(EPOCHS):
            for batch in range(self.limit):
                if steps >= end:
                    break
                trained.append(stream[epoch * BATCHES + batch])
                steps += (batch + 1) % self.accumulated == 0 or batch + 1 == self.limit
        return trained

    def goes_on(self, rest: list[Step], done: int, stream: list[Step]) -> bool:
        """Tell whether the rest of a run, of which so many batches were done, is trained on by one that resumes it.

        Where the run had ended, that is nothing, or what comes next in the epoch, or the next epoch.
        """
        expected = self.expected(stream)
        if done < len(expected):
            return rest == expected[done:]
        last = stream.index(expected[-1])
        return not rest or stream.index(rest[0]) in (last + 1, (last // BATCHES + 1) * BATCHES)


def drawn(seed: int) -> tuple[Run, random.Random]:
    """Draw a run, and what goes on drawing."""
    draws = random.Random(seed)
    end = draws.choice(["epochs", "max_steps", "stopped"])
    run = Run(
        asked=draws.choice([None, "configure_optimizers", "setup", "on_fit_start"]),
        limit=draws.choice([BATCHES, BATCHES, 3, 2]),
        validated=draws.choice([None, 2, 0]),
        accumulated=draws.choice([1, 1, 2]),
        max_steps=draws.choice([4, 5, 7]) if end == "max_steps" else None,
        stopped=draws.choice([3, 4, 5]) if end == "stopped" else None,
        reloaded=draws.random() < 0.3,
    )
    return run, draws


def plain_stream() -> list[Step]:
    """Serve epochs in a plain loop."""
    with training_loader() as loader:
        return plain_loop(loader, EPOCHS + 2)
