"""Two processes that train by Lightning: all of it, and again from some of its checkpoints. See test_lightning."""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from dalirefurb.trainers.lightning import RefurbDataModule
from tests.trainers.streams import EPOCHS, evaluating_loader, network, step_of, training_loader

warnings.simplefilter("ignore")


class Model(pl.LightningModule):  # type: ignore[misc]
    """Leaves in a file what it was trained and validated on."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.network = network()
        self.path = path
        self.trained: list[Any] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = batch
        self.trained.append(step_of(images, labels))
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += batch[1].tolist()

    def on_fit_end(self) -> None:
        told = {"trained": self.trained, "validated": self.validated}
        Path(f"{self.path}-{self.global_rank}.json").write_text(json.dumps(told))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


WHOLE = "whole"


def main(strategy: str, folder: str, *names: str) -> None:
    """Train all of it, as `WHOLE`, and from checkpoints of it by their names."""
    steps = pl.callbacks.ModelCheckpoint(folder, "step-{step}", save_top_k=-1, every_n_train_steps=1)
    epochs = pl.callbacks.ModelCheckpoint(folder, "epoch-{step}", save_top_k=-1)
    for name in names:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            max_epochs=EPOCHS,
            callbacks=[steps, epochs] if name == WHOLE else [],
            enable_checkpointing=name == WHOLE,
        )
        data = RefurbDataModule(train=partial(training_loader, shards=2), val=evaluating_loader)
        path = None if name == WHOLE else f"{folder}/{name}.ckpt"
        trainer.fit(Model(f"{folder}/{name}"), datamodule=data, ckpt_path=path, weights_only=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
