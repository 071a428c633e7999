"""One process of two that train and evaluate by Accelerate, and leave what they were served. See test_accelerate."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dalirefurb import AutoAssist
from dalirefurb.trainers.accelerate import prepare
from tests.trainers.streams import EPOCHS, evaluating_loader, losses_of, network, refurbish, training_loader

warnings.simplefilter("ignore")


def rest_of_assisted(accelerator: Any, folder: str) -> list[list[Any]]:
    """Serve by AutoAssist; return what came after a state was saved, at first and again after it was loaded."""
    served: list[list[Any]] = []
    with training_loader(AutoAssist(refurbish(shards=2), lag=8)) as loader:
        prepared = prepare(accelerator, loader)
        for _ in range(2):
            for images, labels in prepared:
                loader.observe(losses_of(images))
                served.append(labels.tolist())
                if len(served) == 6:
                    accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        accelerator.load_state(folder)
        again = []
        for images, labels in prepared:
            loader.observe(losses_of(images))
            again.append(labels.tolist())
    return [served[6:], again]


def main(folder: str) -> None:
    """Train, saving a state; go on from it twice; evaluate."""
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    net = network()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    told: dict[str, Any] = {"trained": [], "resumed": [], "skipped": [], "gathered": []}
    with training_loader(shards=2) as loader, evaluating_loader(pad=True) as val:
        training, validating = prepare(accelerator, loader, val)
        for _ in range(EPOCHS):
            for images, labels in training:
                accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
                optimizer.step()
                told["trained"].append(labels.tolist())
                if len(told["trained"]) == 6:
                    accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        accelerator.load_state(folder)
        while len(told["resumed"]) < 6:
            told["resumed"] += [labels.tolist() for _, labels in training]
        accelerator.load_state(folder)
        told["skipped"] = [labels.tolist() for _, labels in accelerator.skip_first_batches(training, 2)]
        for _, labels, _ in validating:
            told["gathered"] += accelerator.gather_for_metrics(labels).tolist()
        training.set_epoch(2)
        gathered = [accelerator.gather_for_metrics(labels).tolist() for _, labels in training]
        told["gathered_of_training"] = [label for labels in gathered for label in labels]
        told["alone"] = rest_of_assisted(accelerator, f"{folder}/assisted")
        told["sizes"] = [training.total_batch_size, training.total_dataset_length]
    Path(folder, f"{accelerator.process_index}.json").write_text(json.dumps(told))
    accelerator.end_training()
