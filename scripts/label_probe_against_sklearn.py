"""Linear probe of several labels per image against scikit-learn, and a fine-tuned model against the probe.

    python -m scripts.label_probe_against_sklearn WEIGHTS TABLE.csv [RUN] [HEIGHTxWIDTH]

Both probes see the same frozen features and the same penalty. RUN is fine-tuned on the table: the difference of the mean
average precisions on test is resampled in pairs. HEIGHTxWIDTH: the images are stretched to this size instead of the
weights' own.
"""

import sys

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier

import vitrail
from vitrail.cli.options import parse_size
from vitrail.evaluation.bootstrap import bias_corrected_interval
from vitrail.evaluation.linear_probe import linear_label_probe
from vitrail.tasks.label_metrics import average_precision
from vitrail.tasks.resampling import iter_resamples


def main(weights: str, table: str, run: str = "", size: str = "") -> None:
    data = vitrail.open_dataset(table)
    model = vitrail.load(weights, image=parse_size(size, "HEIGHTxWIDTH")) if size else vitrail.load(weights)
    assert model.preprocess is not None
    model.preprocess = model.preprocess.with_fit("stretch") if size else model.preprocess
    features = [vitrail.embed(model, part).values for part in data.splits.values()]
    targets = [torch.from_numpy(np.stack(list(part.targets))).float() for part in data.splits.values()]
    result, logits = linear_label_probe(features, targets, has_test=True)
    mean = features[0].mean(axis=0)
    deviation = float((features[0] - mean).std())
    x, y = np.concatenate(features[:2]), torch.cat(targets[:2]).numpy()
    reference = OneVsRestClassifier(LogisticRegression(C=1 / (len(x) * result.penalty), max_iter=5000))
    theirs = reference.fit((x - mean) / deviation, y).decision_function((features[2] - mean) / deviation)
    score = float(average_precision_score(targets[2], theirs))
    print(f"mAP on test: probe {result.map:.4f}, scikit-learn {score:.4f}, penalty {result.penalty:.3g}")  # noqa: T201
    if run:
        evaluation = vitrail.evaluate(run, data, "test")
        positive = targets[2].bool()
        samples = []
        for counts in iter_resamples(len(positive)):
            both = (
                torch.stack(
                    [average_precision(s, p, torch.from_numpy(counts)) for s, p in zip(scores.T, positive.T, strict=True)]
                )
                for scores in (logits, evaluation.outputs)
            )
            probe, tuned = both
            present = torch.from_numpy(counts).double() @ positive.double() > 0
            samples.append(((tuned - probe) * present.T).sum(0) / (positive.any(0).sum() - (positive.any(0) & ~present).sum(1)))
        difference = evaluation.metrics["map"] - result.map
        low, high = bias_corrected_interval(torch.cat(samples).numpy(), difference)
        print(f"fine-tuned {evaluation.metrics['map']:.4f}: {difference:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
