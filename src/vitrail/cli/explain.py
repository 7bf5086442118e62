"""``vitrail explain``: saliency maps, attention of every head, logit lens, and the faithfulness of each method."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.embed import open_splits
from vitrail.cli.input_paths import expand_paths
from vitrail.cli.options import JsonOption, ModelArgument
from vitrail.cli.panels import attention_option, faithfulness_option, output_option, saliency_option
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.errors import VitrailError, did_you_mean, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from vitrail.evaluation.box_selection import BoxSelection
    from vitrail.evaluation.explanation_benchmark import MeanAndError, MethodScore
    from vitrail.evaluation.explanations import Explanation
    from vitrail.evaluation.region_selection import PixelSelection
    from vitrail.explain.head_statistics import HeadStatistics

MAX_PAGE_IMAGES = 50  # images per page


def explain(
    source: ModelArgument,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGES...", help="Images: files, folders, 'patterns*.jpg'.")
    ] = None,
    out: Annotated[Path, output_option(metavar="DIR", help="Folder for the page, the figures and the numbers.")] = Path(
        "explained"
    ),
    method: Annotated[
        list[str] | None,
        saliency_option(
            help="Saliency method: attention, rollout, gradient_rollout, relevance, gradcam, integrated_gradients or none; "
            "repeatable, default: all."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        attention_option(
            metavar="INDICES", help="Layers whose heads are drawn, such as 0,3-5 or -1 for the last; default: all."
        ),
    ] = None,
    heads: Annotated[str | None, attention_option(metavar="INDICES", help="Heads that are drawn; default: all.")] = None,
    query: Annotated[
        list[str] | None,
        attention_option(
            metavar="ROW,COLUMN",
            help="Query token whose attention is drawn: a patch, class or register0; repeatable, default: the pooled tokens.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        saliency_option(
            "--class",
            metavar="NAME",
            help="Class to explain, or the index of another output; repeatable, default: the most probable class.",
        ),
    ] = None,
    pixel: Annotated[
        str | None,
        saliency_option(
            metavar="X,Y", help="Pixel whose class is explained, of a segmentation model: column and row in the upright image."
        ),
    ] = None,
    region: Annotated[
        str | None,
        saliency_option(
            metavar="X,Y,W,H",
            help="Rectangle of pixels that is explained as one; default: all pixels predicted to be of the class, or of the "
            "largest class.",
        ),
    ] = None,
    box: Annotated[
        str | None,
        saliency_option(
            metavar="N|best|X,Y",
            help="Detection that is explained, of a detection model: its index from 0, best, or a pixel in it; default: that "
            "with the highest score, or with the highest of the class.",
        ),
    ] = None,
    faithfulness: Annotated[
        str | None,
        faithfulness_option(
            metavar="DATA",
            help="Measure the faithfulness of each method on this dataset; the embedded panes also have object masks.",
        ),
    ] = None,
    limit: Annotated[
        int, faithfulness_option(metavar="N", min=1, help="Number of images that faithfulness is measured on.")
    ] = 100,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Explain predictions: saliency maps, attention of every head and layer, logit lens and learned filters."""
    if not files and faithfulness is None:
        raise VitrailError("explain needs images, got none; name files or a folder, or use --faithfulness DATA")
    if out.exists() and not out.is_dir():
        raise VitrailError(f"--out must be a folder, got the file {out}; try --out {out.stem or 'explained'}-explained")
    _check_writable(out)
    with progress_bars() as on_progress:
        names = list(expand_paths(files, on_progress)) if files else []
    if files and not names:
        raise VitrailError(f"there is no image in {printable(files[0])}; name files, or a folder of images")
    if len(names) > MAX_PAGE_IMAGES:
        raise VitrailError(
            f"a page shows at most {MAX_PAGE_IMAGES} images, got {len(names):,}; name fewer, or use --faithfulness DATA"
        )

    from vitrail.evaluation.explanations import AttentionSelection, check_queries, explain_images, output_index
    from vitrail.explain.attention import as_vit
    from vitrail.explain.head_statistics import head_statistics
    from vitrail.report.explanation_page import write_explanation_page
    from vitrail.system import select_device
    from vitrail.tasks.registry import model_task
    from vitrail.weights.load import load

    methods, pixels, box_selection = _check_methods(method), _parse_pixels(pixel, region), _parse_box(box)
    model = load(source).to(select_device(device))
    vit = as_vit(model)
    task = model_task(model)
    numbers = None if not target else list(dict.fromkeys(output_index(name, task) for name in target))
    if faithfulness is not None and numbers is not None and len(numbers) > 1:
        raise VitrailError(f"--faithfulness measures the maps of one class, got {len(numbers)}; name one --class, or none")
    views = AttentionSelection(
        _parse_indices("--layers", layers, len(vit.blocks)),
        _parse_indices("--heads", heads, vit.config.heads),
        tuple(dict.fromkeys(query)) if query else None,
    )
    check_queries(model, views)
    explanations: list[Explanation] = []
    with progress_bars() as on_progress:
        for explanation in explain_images(model, names, methods, numbers, views, pixels, box_selection):
            explanations.append(explanation)
            on_progress("explaining", len(explanations), len(names) * len(numbers or [0]))
        images = [explanation.image for explanation in explanations if not explanation.is_another_target]
        batches = (image[None].to(next(model.parameters()).device) for image in images)
        head_stats = head_statistics(model, batches) if explanations else None
        faithfulness_scores = (
            []
            if faithfulness is None
            else _measure_faithfulness(model, faithfulness, methods, limit, workers, on_progress, numbers)
        )
    written = write_explanation_page(out, model, explanations, head_stats, faithfulness_scores)
    if json:
        print_json(_result_json(source, model, explanations, head_stats, faithfulness_scores, out, written))
        return
    _print_result(model, explanations, faithfulness_scores)
    typer.echo(f"page: {out / written[-1]}")


def _check_writable(out: Path) -> None:
    """Check before the work that the folder can be written, leaving nothing behind."""
    from tempfile import TemporaryDirectory

    existing = next((folder for folder in (out, *out.parents) if folder.exists()), Path())
    try:
        with TemporaryDirectory(prefix=".vitrail-", dir=existing):
            pass
    except OSError as error:
        raise VitrailError(
            f"--out must be a folder that can be written, got {out}: {error.strerror or error}; try --out explained"
        ) from None


def _parse_indices(option: str, text: str | None, count: int) -> tuple[int, ...] | None:
    """Parse indices and ranges such as ``0,3-5,-1``; negative ones count from the end."""
    if text is None:
        return None
    indices: list[int] = []
    for item in text.split(","):
        part = re.fullmatch(r"\s*(-?\d{1,6})(?:-(\d{1,6}))?\s*", item)
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (0, count)
        if not (-count <= first <= last < count):
            raise VitrailError(
                f"{option} must be indices from 0 to {count - 1} as in 0,{count - 1} or 0-{count - 1}, or -1 for the last; "
                f"got {printable(text[:40])!r}"
            )
        indices += [index % count for index in range(first, last + 1)]
    return tuple(dict.fromkeys(indices))


def _parse_pixels(pixel: str | None, region: str | None) -> "PixelSelection | None":
    from vitrail.evaluation.region_selection import PixelSelection

    if pixel is not None and region is not None:
        raise VitrailError(f"--pixel and --region both say what is explained, got {printable(pixel[:40])}; leave one out")
    for option, text, example in (("--pixel", pixel, "16,12"), ("--region", region, "16,12,40,30")):
        if text is not None and not re.fullmatch(rf"\d{{1,6}}(,\d{{1,6}}){{{example.count(',')}}}", text, re.ASCII):
            names = "X,Y" if option == "--pixel" else "X,Y,W,H"
            raise VitrailError(f"{option} must be {names} in pixels, got {printable(text[:40])!r}; try {option} {example}")
    if pixel is not None:
        x, y = map(int, pixel.split(","))
        return PixelSelection(pixel=(x, y))
    if region is not None:
        x, y, width, height = map(int, region.split(","))
        return PixelSelection(box=(x, y, width, height))
    return None


def _parse_box(text: str | None) -> "BoxSelection | None":
    from vitrail.evaluation.box_selection import BoxSelection

    if text is None or text == "best":
        return None if text is None else BoxSelection()
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})?", text, re.ASCII):
        raise VitrailError(
            f"--box must be the index of a detection, best, or X,Y in pixels, got {printable(text[:40])!r}; try --box 0"
        )
    first, *second = map(int, text.split(","))
    return BoxSelection(point=(first, second[0])) if second else BoxSelection(first)


def _check_methods(methods: "list[str] | None") -> "list[str] | None":
    from vitrail.explain.saliency import SALIENCY_METHODS

    if methods == ["none"]:
        return []
    for method in methods or ():
        if method not in SALIENCY_METHODS:
            hint = did_you_mean(method, SALIENCY_METHODS)
            raise VitrailError(
                f"--method must be {', '.join(SALIENCY_METHODS)}, or none alone, got {printable(method)!r}{hint}"
            )
    return list(dict.fromkeys(methods)) if methods else None


def _output_names(model: "nn.Module") -> tuple[str, ...]:
    from vitrail.evaluation.explanations import output_names
    from vitrail.tasks.registry import model_task

    return output_names(model_task(model))


def _measure_faithfulness(
    model: "nn.Module",
    data: str,
    methods: "list[str] | None",
    limit: int,
    workers: int | None,
    on_progress: Any,
    targets: list[int] | None,
) -> "list[MethodScore]":
    from vitrail.evaluation.explanation_benchmark import benchmark_explanations

    splits = open_splits(data, None, on_progress)
    source = next(splits[name] for name in ("all", "test", "validation", "train") if name in splits)  # labels are not needed
    target = None if targets is None else targets[0]
    return benchmark_explanations(model, source, methods, limit, workers=workers, progress=on_progress, target=target)


def _print_result(
    model: "nn.Module", explanations: "Sequence[Explanation]", faithfulness_scores: "Sequence[MethodScore]"
) -> None:
    screen = make_console()
    labels = _output_names(model)
    classifies = any(explanation.probabilities is not None for explanation in explanations)
    columns = ("prediction", "#probability", "explained class") if classifies else ("#output", "explained output")
    if any(explanation.predicted_labels is not None for explanation in explanations):
        columns = ("predicted labels", "#of the explained", "explained class")
    rows = make_table("image", *columns)
    for explanation in explanations:
        if explanation.target is not None:
            first = int(explanation.outputs.argmax())
            prediction: tuple[str, ...] = (f"{explanation.outputs[explanation.target]:.4g}",)
            if explanation.probabilities is not None and explanation.predicted_labels is not None:
                listed = ", ".join(map(printable, explanation.predicted_labels)) or "no label"
                prediction = (listed, f"{explanation.probabilities[explanation.target]:.1%}")
            elif explanation.probabilities is not None:
                prediction = (printable(labels[first]), f"{explanation.probabilities[first]:.1%}")
            add_row(rows, printable(explanation.file), *prediction, printable(labels[explanation.target]))
    if explanations and labels:
        screen.print(rows)
    if not faithfulness_scores:
        return

    from vitrail.evaluation.explanation_benchmark import verdict

    masks = faithfulness_scores[0].pointing_game is not None
    more = ("#pointing game", "#mass on object") if masks else ()
    sheet = make_table(
        "method", "#deletion", "#insertion", *more, title="Faithfulness: lower deletion is better, all others higher"
    )
    for row in faithfulness_scores:
        add_row(
            sheet,
            row.method,
            *(_format_score(score) for score in (row.deletion, row.insertion, row.pointing_game, row.mass_on_object) if score),
        )
    screen.print(sheet)
    if sentence := verdict(faithfulness_scores):
        screen.print(sentence)


def _format_score(score: "MeanAndError") -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"


def _result_json(
    source: str,
    model: "nn.Module",
    explanations: "Sequence[Explanation]",
    head_stats: "HeadStatistics | None",
    faithfulness_scores: "Sequence[MethodScore]",
    out: Path,
    written: list[str],
) -> dict[str, Any]:
    from dataclasses import asdict

    from vitrail.evaluation.region_selection import region_json

    labels = _output_names(model)
    images = [
        {
            "file": explanation.file,
            "label": None if explanation.probabilities is None else labels[int(explanation.outputs.argmax())],
            "probability": None if explanation.probabilities is None else explanation.probabilities.max().item(),
            **({} if explanation.predicted_labels is None else {"labels": explanation.predicted_labels}),
            "outputs": explanation.outputs.tolist() if explanation.probabilities is None else None,
            "explained": None if explanation.target is None else labels[explanation.target],
            "maps": {name: values.tolist() for name, values in explanation.saliency_maps.items()},
            "logit_lens": explanation.target_lens,
            "token_norms": explanation.token_norms.tolist(),
            **region_json(explanation.region, explanation.curves),
        }
        for explanation in explanations
    ]
    measures = ("distance", "renormalised", "entropy", "similarity")
    heads = None if head_stats is None else {name: getattr(head_stats, name).tolist() for name in measures}
    faithfulness = [asdict(row) for row in faithfulness_scores]
    return {"model": source, "images": images, "heads": heads, "faithfulness": faithfulness, "out": str(out), "files": written}
