"""Linear probe from weights and an image folder to test accuracy: Vitrail against timm and scikit-learn.

    python scripts/probe_against_sklearn.py WEIGHTS.safetensors FOLDER [MODEL] [TURNS]

Interleaved in one process, ours with an empty cache every time, both with as many data workers; the best turn counts.
FOLDER has train, validation and test. The peer sweeps five values of C and retrains the best on train and validation.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.system import available_cores

Timing = tuple[float, float, float]  # seconds for features, for the probe, accuracy


def run_vitrail(weights: str, folder: Path, _: str) -> Timing:
    import vitrail
    from vitrail.evaluation.linear_probe import linear_probe
    from vitrail.inference.features import embed

    with tempfile.TemporaryDirectory() as empty:
        os.environ["VITRAIL_CACHE"] = empty
        start = time.perf_counter()
        data = vitrail.open_dataset(folder)
        model = vitrail.load(weights)
        train, validation, test = (embed(model, data.splits[split]) for split in ("train", "validation", "test"))
        features_done = time.perf_counter()
        probe = linear_probe(train, validation, test, len(data.class_names))
        return features_done - start, time.perf_counter() - features_done, probe.accuracy


def run_sklearn(weights: str, folder: Path, name: str) -> Timing:
    from vitrail.weights.verify import declare_torchvision_operators

    declare_torchvision_operators()
    import timm
    from sklearn.linear_model import LogisticRegression
    from torchvision.datasets import ImageFolder

    start = time.perf_counter()
    model = timm.create_model(name, checkpoint_path=weights).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    parts: dict[str, Any] = {}
    for split in ("train", "validation", "test"):
        loader = torch.utils.data.DataLoader(ImageFolder(folder / split, transform), 64, num_workers=min(available_cores(), 8))
        with torch.inference_mode():
            rows = [(model.forward_head(model.forward_features(x), pre_logits=True), y) for x, y in loader]
        parts[split] = np.concatenate([x.numpy() for x, _ in rows]), np.concatenate([y.numpy() for _, y in rows])
    features_done = time.perf_counter()
    candidates = [LogisticRegression(C=c, max_iter=1000).fit(*parts["train"]) for c in 10.0 ** np.arange(-4, 1)]
    best = max(candidates, key=lambda one: one.score(*parts["validation"]))
    both = [np.concatenate(pair) for pair in zip(parts["train"], parts["validation"], strict=True)]
    final = LogisticRegression(C=best.C, max_iter=1000).fit(*both)
    return features_done - start, time.perf_counter() - features_done, float(final.score(*parts["test"]))


def main(weights: str, folder: str, name: str = "vit_tiny_patch16_224", turns: str = "2") -> None:
    logging.getLogger("vitrail").setLevel(logging.ERROR)
    timings: dict[str, list[Timing]] = {"ours": [], "peer": []}
    contestants: dict[str, Callable[[str, Path, str], Timing]] = {"ours": run_vitrail, "peer": run_sklearn}
    for _ in range(int(turns)):
        for contestant, run in contestants.items():
            timings[contestant].append(run(weights, Path(folder), name))
            print(contestant, [round(number, 4) for number in timings[contestant][-1]], flush=True)  # noqa: T201
    best = {contestant: min(rows, key=lambda row: row[0] + row[1]) for contestant, rows in timings.items()}
    seconds = {contestant: row[0] + row[1] for contestant, row in best.items()}
    summary = {"seconds": seconds, "ratio": seconds["ours"] / seconds["peer"], "accuracy": {s: r[2] for s, r in best.items()}}
    print(json.dumps(summary, indent=2))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
