"""One process of two that train and evaluate by Hugging Face's Trainer. See test_transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from dalirefurb.trainers.transformers import RefurbTrainer
from tests.trainers.streams import BATCH_SIZE, EPOCHS, Step, evaluating_loader, network, step_of, training_loader


class Model(nn.Module):
    """Remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = network()
        self.shown: list[Step] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.shown.append(step_of(pixel_values, labels))
        logits = self.network(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def arguments(folder: Path, **settings: Any) -> Any:
    """Make arguments that save nothing unless told to."""
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 100}
    sizes = {"per_device_train_batch_size": BATCH_SIZE, "per_device_eval_batch_size": BATCH_SIZE}
    return TrainingArguments(str(folder), **{**quiet, **sizes, "num_train_epochs": EPOCHS, **settings})


def main(folder: str) -> None:
    """Train, go on from a checkpoint, and evaluate."""
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {}
    sizes = {"per_device_train_batch_size": BATCH_SIZE // 2, "per_device_eval_batch_size": BATCH_SIZE // 2}
    for name, checkpoint in (("trained", None), ("resumed", f"{folder}/checkpoint-6")):
        settings = arguments(Path(folder), save_strategy="steps", save_steps=6, **sizes)
        model = Model()
        with training_loader(shards=2) as loader:
            trainer = RefurbTrainer(model, settings, train_dataset=loader)
            trainer.train(resume_from_checkpoint=checkpoint)
        told[name] = [labels for labels, _ in model.shown]
    with evaluating_loader(pad=True) as loader:
        output = trainer.predict(loader)
        told["labels"] = output.label_ids.tolist()
        told["eval_loss"] = output.metrics["test_loss"]
    logits, labels = torch.tensor(output.predictions), torch.tensor(output.label_ids)
    told["expected_loss"] = float(nn.functional.cross_entropy(logits, labels))
    Path(folder, f"{settings.process_index}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()
