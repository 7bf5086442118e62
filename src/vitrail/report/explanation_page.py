"""Explanation page: saliency maps of every image by every method, attention heads, logit lens, and the model's weights.

Every figure of the page is also written as PNG and SVG, and its numbers as ``.npz``.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from torch import Tensor, nn

from vitrail.evaluation.box_selection import ExplainedBox
from vitrail.evaluation.explanation_benchmark import MethodScore
from vitrail.evaluation.explanations import POOL_QUERY, Explanation, output_names
from vitrail.explain.attention import as_vit
from vitrail.explain.embeddings import patch_filters, position_kind, position_similarity
from vitrail.explain.head_statistics import HeadStatistics
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS
from vitrail.io import atomic_write
from vitrail.models.vit import ViT
from vitrail.plot.canvas import Figure, WriteFile, write_figure
from vitrail.plot.heatmap import attention_grid, filter_grid, heatmap_grid, heatmap_row, overlay, patch_grid
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import denormalise
from vitrail.report.faithfulness_section import METHOD_TITLES, faithfulness_section
from vitrail.report.html import html_page, html_table
from vitrail.report.region_section import curves_section, mask_legend, region_figures
from vitrail.tasks.registry import model_task

PAGE = "index.html"
MAX_OUTPUTS = 5  # classes or outputs that are listed
POOL_QUERIES = {
    "cls": "the class token",
    "gap": "all patches, averaged",
    "cls+gap": "the class token and all patches",
    "cls+register": "the class token and the first register",
    "map": "the patches, weighted by the attention pooling",
}


def write_explanation_page(
    folder: Path,
    model: nn.Module,
    explanations: Sequence[Explanation],
    heads: HeadStatistics | None,
    faithfulness: Sequence[MethodScore] = (),
) -> list[str]:
    """Write the page with its figures and arrays, and return the file names, the page last."""
    written: list[str] = []

    def write_file(name: str, content: bytes) -> None:
        atomic_write(folder / name, content)
        written.append(name)

    folder.mkdir(parents=True, exist_ok=True)
    vit = as_vit(model)
    parts = ["<h1>Explanations</h1>"]
    images: list[list[tuple[str, Explanation]]] = []
    for number, explanation in enumerate(explanations):
        if not explanation.is_another_target:
            images.append([])
        images[-1].append((f"{number:02d}-{_safe_name(explanation.file)}", explanation))
    for image in images:
        parts += _image_section(image, vit, write_file)
    parts += [*faithfulness_section(faithfulness, write_file), "<h2>The model</h2>", *_model_figures(vit, heads, write_file)]
    write_file(PAGE, html_page("Explanations", parts).encode())
    return written


def _image_section(explanations: Sequence[tuple[str, Explanation]], vit: ViT, write_file: WriteFile) -> list[str]:
    """Return the section of an image, with the maps of each class that is explained, by the name of its files."""
    (name, first), shots, lenses = explanations[0], list[str](), list[str]()
    for each_name, explanation in explanations:
        prediction, lens = (
            _prediction(explanation, explanation.target, each_name, vit, write_file)
            if explanation.target is not None
            else ("The model has no head, and predicts nothing.", [])
        )
        legend = [] if explanation.is_another_target else mask_legend(explanation, output_names(model_task(vit)))
        shots += [
            f"<p>{prediction}</p>",
            *legend,
            f'<div class="shots">{"".join(_maps(explanation, each_name, vit, write_file))}</div>',
        ]
        shots += curves_section(explanation, each_name, write_file)
        lenses += lens
        write_file(f"{each_name}.npz", _to_npz(_arrays(explanation)))
    return [
        f"<h2>{escape(first.file)}</h2>",
        *shots,
        *_attention_grids(first, name, vit, write_file),
        *lenses,
        "<h3>Token norms: a few patches of much larger norm than the others are artefacts, which registers remove</h3>",
        *_token_norms(first, name, vit, write_file),
    ]


def _maps(explanation: Explanation, name: str, vit: ViT, write_file: WriteFile) -> Iterator[str]:
    """Yield the image with its patches and the saliency maps; for another class of the same image, only those that differ."""
    preprocess = vit.preprocess
    assert preprocess is not None
    (image,) = denormalise(explanation.image[None].float(), preprocess)
    queries = [
        (int(row), int(column)) for row, sep, column in (query.partition(",") for query in explanation.attention_rows) if sep
    ]
    outlined = None if explanation.region is None else explanation.region.inside.numpy()
    if not explanation.is_another_target:
        yield from region_figures(explanation, image, output_names(model_task(vit)), name, write_file)
        yield write_figure(patch_grid(image, explanation.grid, "image and patches", queries), f"{name}-patches", write_file)
    for method, values in explanation.saliency_maps.items():
        if not (explanation.is_another_target and method in CLASS_AGNOSTIC_METHODS):
            figure = overlay(image, values.float().numpy(), METHOD_TITLES.get(method, method), region=outlined)
            yield write_figure(figure, f"{name}-{method}", write_file)


def _prediction(explanation: Explanation, target: int, name: str, vit: ViT, write_file: WriteFile) -> tuple[str, list[str]]:
    """Describe the prediction, or the outputs if the model is no classifier, and the logit lens after each layer."""
    names = output_names(model_task(vit))
    classifies = explanation.probabilities is not None
    values = explanation.outputs if explanation.probabilities is None else explanation.probabilities
    best = values.argsort(descending=True)[:MAX_OUTPUTS].tolist()
    title = "Prediction" if classifies else "Outputs" if len(values) <= MAX_OUTPUTS else "Largest outputs"
    separator = " " if classifies else ": "
    top = ", ".join(f"{escape(names[index])}{separator}{_format_value(explanation, values[index])}" for index in best)
    kind, subject = ("class", names[target]) if classifies else ("output", f"output {names[target]}")
    explains = f" The {kind}-specific maps explain <b>{escape(subject)}</b>." if explanation.saliency_maps else ""
    if explanation.predicted_labels is not None:
        listed = ", ".join(map(escape, explanation.predicted_labels)) or "none"
        title = f"Labels that reach their threshold: {listed}. Most probable"
    if explanation.region is not None:
        title = f"Prediction for {escape(explanation.region.text)}"
    if explanation.is_another_target:
        probability = _format_value(explanation, values[target])
        lens = _lens(explanation, target, names, name, best, f"Logit lens of {escape(subject)}", write_file)
        return f"The class-specific maps of <b>{escape(subject)}</b>, {probability}:", lens
    lens_title = f"Logit lens: the {'classifier' if classifies else 'head'} applied after each layer"
    return f"{title}: {top}.{explains}", _lens(explanation, target, names, name, best, lens_title, write_file)


def _lens(
    explanation: Explanation,
    target: int,
    names: Sequence[str],
    name: str,
    best: Sequence[int],
    title: str,
    write_file: WriteFile,
) -> list[str]:
    """Draw the logit lens, if the model has one."""
    if not explanation.logit_lens.shape[1]:
        return []
    chart = write_figure(_lens_chart(explanation, target, names, best), f"{name}-lens", write_file)
    return [f"<h3>{title}</h3>", f'<div class="figures">{_lens_table(explanation, target, names)}{chart}</div>']


def _attention_grids(explanation: Explanation, name: str, vit: ViT, write_file: WriteFile) -> list[str]:
    parts = []
    for query, rows in explanation.attention_rows.items():
        query_text = _pooled_text(explanation, vit) if query == POOL_QUERY else _query_name(query)
        maps = rearrange(rows[..., vit.config.prefix_tokens :].float(), "l h (y x) -> l h y x", y=explanation.grid[0]).numpy()
        grid_figure = attention_grid(
            maps,
            f"Attention of {query_text}" if query != POOL_QUERY else f"Attention heads, query: {query_text}",
            explanation.layers,
            explanation.head_indices,
        )
        file = f"{name}-heads" if query == POOL_QUERY else f"{name}-heads-{query.replace(',', '-')}"
        parts.append(write_figure(grid_figure, file, write_file, "each scaled to its own minimum and maximum"))
    return parts


def _pooled_text(explanation: Explanation, vit: ViT) -> str:
    if isinstance(explanation.region, ExplainedBox):
        return "the patch at the centre of the box"
    return POOL_QUERIES[vit.config.pool] if explanation.region is None else "the patches of the region"


def _query_name(name: str) -> str:
    return "the class token" if name == "class" else name if name.startswith("register") else f"patch {name}"


def _lens_table(explanation: Explanation, target: int, names: Sequence[str]) -> str:
    rows, classifies = [], explanation.probabilities is not None
    for layer, values in enumerate(explanation.logit_lens):
        first = int(values.argmax())
        after = "input" if layer == 0 else str(layer - 1)
        prediction = [escape(names[first]), _format_value(explanation, values[first])] if classifies else []
        rows.append([after, *prediction, _format_value(explanation, values[target])])
    first_column = "prediction" if explanation.predicted_labels is None else "most probable"
    columns = [first_column, "#probability", f"#{names[target]}"] if classifies else [f"#output {names[target]}"]
    return html_table(["after layer", *columns], rows)


def _format_value(explanation: Explanation, value: Tensor) -> str:
    """Return a probability as a percentage, any other output as a number."""
    return f"{value:.4g}" if explanation.probabilities is None else f"{value:.1%}"


def _lens_chart(explanation: Explanation, target: int, names: Sequence[str], best: Sequence[int]) -> Figure:
    selected = list(dict.fromkeys([target, *best]))[:5]
    unique = {
        number: names[number] if names.count(names[number]) == 1 else f"{names[number]} ({number})" for number in selected
    }
    lines = {unique[number]: list(enumerate(explanation.logit_lens[:, number].tolist())) for number in selected}
    columns = len(explanation.logit_lens)
    if explanation.probabilities is None:
        return line_chart("Outputs by layer", "output", "blocks", lines, columns=columns)
    return line_chart("Class probabilities by layer", "probability", "blocks", lines, columns=columns, y_min=0, percent=True)


def _token_norms(explanation: Explanation, name: str, vit: ViT, write_file: WriteFile) -> list[str]:
    prefix, norms = vit.config.prefix_tokens, explanation.token_norms.float()
    patches = norms[:, prefix:]
    lines = {"largest patch": patches.amax(dim=1), "median patch": patches.median(dim=1).values}
    if vit.config.has_class_token:
        lines["class token"] = norms[:, 0]
    if vit.config.registers:
        lines["registers, mean"] = norms[:, prefix - vit.config.registers : prefix].mean(dim=1)
    maps = rearrange(patches, "s (y x) -> s y x", y=explanation.grid[0]).numpy()
    after = ["input", *(f"layer {number}" for number in range(len(norms) - 1))]
    points = {line: list(enumerate(values.tolist())) for line, values in lines.items()}
    plot = line_chart("Token norms by layer", "norm", "blocks", points, columns=len(norms), y_min=0)
    norm_maps = heatmap_row(maps, after, "Norm of each patch token")
    return [write_figure(norm_maps, f"{name}-norms", write_file), write_figure(plot, f"{name}-lengths", write_file)]


def _model_figures(vit: ViT, heads: HeadStatistics | None, write_file: WriteFile) -> list[str]:
    parts: list[str] = []
    arrays: dict[str, Any] = {"filters": patch_filters(vit).cpu().float().numpy()}
    if heads is not None:
        figures = _head_scatter("Mean attention distance", "pixels", heads.distance.tolist(), "distance", write_file)
        figures += _head_scatter("Attention entropy", "nats", heads.entropy.tolist(), "entropy", write_file)
        similarity = heads.similarity.cpu().float().numpy()
        names = [f"layer {layer}" for layer in range(len(similarity))]
        sheet = heatmap_row(
            similarity, names, "Similarity of the heads of a layer: cosine of their attention weights", (0.0, 1.0)
        )
        parts += [
            f'<div class="figures">{figures}</div>',
            write_figure(sheet, "similarity", write_file, "one row and one column per head"),
        ]
        arrays |= {name: getattr(heads, name).cpu().float().numpy() for name in ("distance", "renormalised", "entropy")}
        arrays["similarity"] = similarity
    if position_kind(vit.config) != "none":
        arrays["positions"] = position_similarity(vit).cpu().float().numpy()
        positions_figure = heatmap_grid(arrays["positions"], "Position embedding similarity")
        parts.append(
            write_figure(positions_figure, "positions", write_file, "one tile per position: its cosine to every position")
        )
    sheet = filter_grid(arrays["filters"], "Principal components of the patch filters")
    write_file("model.npz", _to_npz(arrays))
    return [*parts, write_figure(sheet, "filters", write_file, "the first components, by decreasing variance")]


def _head_scatter(title: str, unit: str, values: list[list[float]], name: str, write_file: WriteFile) -> str:
    """Draw the paper's Figure 7, right: one dot per head, by layer."""
    dots = [
        (float(layer), value, f"layer {layer}, head {head}: {value:.3g} {unit}")
        for layer, row in enumerate(values)
        for head, value in enumerate(row)
    ]
    return write_figure(
        line_chart(title, unit, "layer", dots=dots, columns=len(values), y_min=0), name, write_file, "one dot per head"
    )


def _arrays(explanation: Explanation) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: values.float().numpy() for name, values in explanation.saliency_maps.items()}
    tensors = (
        {"outputs": explanation.outputs}
        if explanation.probabilities is None
        else {"logits": explanation.outputs, "probabilities": explanation.probabilities}
    ) | {
        "lens": explanation.logit_lens,
        "norms": explanation.token_norms,
    }
    arrays |= {name: values.float().numpy() for name, values in tensors.items()}
    arrays["heads"] = np.stack([rows.float().numpy() for rows in explanation.attention_rows.values()])
    arrays |= {
        "queries": np.array(list(explanation.attention_rows)),
        "layers": np.array(explanation.layers),
        "head_numbers": np.array(explanation.head_indices),
    }
    return arrays | {
        "grid": np.array(explanation.grid),
        "target": np.array(-1 if explanation.target is None else explanation.target),
    }


def _to_npz(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _safe_name(file: str) -> str:
    """Return a file name reduced to characters that every file system accepts."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in Path(file).stem)[:40] or "image"
