// Part 10: the training run: its curves, live while it trains, the confusion matrix, and the images behind it.
//
// In the URL: `cell` the open cell of the confusion matrix, as true-predicted class indices.

import { chart, legend } from "./chart.js";
import { LINE_COLOURS } from "./colormap.js";
import { el, formatNumber, percent, plural } from "./dom.js";
import { figure } from "./figure.js";
import { onRunEvent } from "./run_events.js";
import { standalone, fetchJson, imageUrl } from "./api.js";
import { showError } from "./toast.js";
import * as state from "./url_state.js";

const MAX_LOG_ROWS = 4000; // log rows in memory of a long run
const MAX_CLASSES_WITH_COUNTS = 30; // largest number of classes with counts in the cells
const METRIC_TITLES = { top1: "accuracy", map: "mAP", miou: "mean IoU", ap: "AP", ap50: "AP50" };
const AP_TEXT = "AP50 is average precision where a box is right if it overlaps that of an object with an IoU of at least 0.5; AP is the mean over IoUs from 0.5 to 0.95.";
const LABEL_COLUMNS = [["average precision", "ap"], ["F1", "f1"], ["precision", "precision"], ["recall", "recall"], ["threshold", "threshold"]];
const BOX_COLUMNS = [["AP", "ap"], ["AP50", "ap50"], ...LABEL_COLUMNS.slice(1)];
const PIXEL_COLUMNS = [["IoU", "iou"], ["Dice", "dice"], ["boundary IoU", "boundary_iou"], ["precision", "precision"], ["recall", "recall"]];

export default {
  name: "run", title: "Training run", glyph: "∿",
  lead: "How this model was trained: its curves, live during training, the confusion matrix, and the images with the highest loss.",
  build,
};

function build(section, store) {
  let run = null, logRows = new Map(), loadedModel = "", timer = 0;
  let matrix = null, highestLoss = null, classes = null, openedCell = "";

  const noRun = el("p", { class: "soft", hidden: true }), progressBox = el("div", { class: "progress" });
  const curveFigures = el("div", { class: "columns" });
  section.append(noRun, progressBox, curveFigures);
  const logCode = (text) => () => [`import json`, `from pathlib import Path`, "",
    `log = Path(${JSON.stringify(store.model.source)}) / "log.jsonl"`, "lines = [json.loads(line) for line in log.read_text().splitlines()]", ...text].join("\n");
  const figures = Object.fromEntries([
    ["loss", "Loss", ['training = [(line["step"], line["loss"]) for line in lines if "loss" in line]',
      'validation = [(line["step"], line["validation"]["loss"]) for line in lines if "validation" in line]']],
    ["accuracy", "Accuracy", ['training = [(line["step"], line["accuracy"]) for line in lines if "accuracy" in line]',
      'validation = [(line["step"], line["validation"]) for line in lines if "validation" in line]']],
    ["lr", "Learning rate", ['rate = [(line["step"], line["lr"]) for line in lines if "lr" in line]']],
    ["grad_norm", "Gradient norm", ['grad_norm = [(line["step"], line["grad_norm"]) for line in lines if "grad_norm" in line]']],
    ["distance", "Mean attention distance by layer", ['distance = [(line["step"], line["attention_stats"]["distance"]) for line in lines if "attention_stats" in line]']],
  ].map(([name, title, text]) => [name, figure(curveFigures, { name: `run-${name}`, title, level: 2, python: logCode(text), numbers: () => curves()[name]?.lines })]));
  const confusionFigure = figure(section, { name: "confusion", title: "Confusion matrix", level: 2, numbers: () => matrix,
    python: () => predictionsCode(store, "matrix = np.zeros((logits.shape[1],) * 2, int)  # true, predicted", "np.add.at(matrix, (labels, logits.argmax(1)), 1)") });
  const classesFigure = figure(section, { name: "classes", title: "Labels", level: 2, numbers: () => classes,
    python: () => ["import json", "from pathlib import Path", "", `result = json.loads((Path(${JSON.stringify(store.model.source)}) / "result.json").read_text())`,
      ...(ofPixels() ? ['for one in sorted(result["classes"], key=lambda one: float(one["iou"])):', '    print(one["name"], one["iou"], one["pixels"])']
        : ['for one in sorted(result["classes"], key=lambda one: float(one["ap"])):', `    print(one["name"], one["ap"], one["${amountOfClass()}"])`])].join("\n") });
  const cellImages = el("div", { class: "cell-images" });
  const lossFigure = figure(section, { name: "highest-loss", title: "Highest losses", level: 2, numbers: () => highestLoss, python: () => (ofBoxes() ? precisionCode(store) : severalLabels() ? labelLossCode(store) : predictionsCode(store,
    "scores = torch.from_numpy(logits).float()", 'losses = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels), reduction="none")',
      "highest = losses.argsort(descending=True, stable=True)[:24]", "print(losses[highest], indices[highest])")) });
  onRunEvent(handleRunEvent);

  return { draw };

  async function draw(reason) {
    if (reason === "point" || reason === "trace") return markSelected();
    if (loadedModel !== store.model.id) await loadRun();
    else if (reason === "open" && run?.result && !matrix && !classes) loadPredictions(loadedModel);
    if (!run) return undefined;
    drawCurves();
    markSelected();
    return showCell();
  }

  async function loadRun() {
    const { id } = store.model;
    loadedModel = id;
    run = matrix = highestLoss = classes = null;
    logRows = new Map();
    openedCell = "";
    for (const one of [curveFigures, confusionFigure.root, classesFigure.root, lossFigure.root, progressBox]) one.hidden = true;
    noRun.hidden = store.model.is_run;
    noRun.replaceChildren("These are weights without a run, so there are no curves to show. ", el("code", {}, "vitrail train DATA --out runs/NAME"),
      " creates a run with a log and checkpoints, and ",
      el("code", {}, "vitrail studio runs/NAME"), " shows it here, also during training.");
    if (!store.model.is_run) return;
    let response;
    try {
      response = await fetchJson("api/run", { model: id });
    } catch (error) {
      if (loadedModel === id) loadedModel = "";
      throw error;
    }
    if (loadedModel !== id) return;
    run = response;
    logRows = new Map([...response.log_rows, ...logRows.values()].map((line) => [rowKey(line), line])); // some may have arrived meanwhile
    curveFigures.hidden = progressBox.hidden = false;
    loadPredictions(id);
  }

  // Evaluations have their own row for the same step.
  function rowKey(line) {
    return `${line.step}${line.validation ? " evaluation" : ""}`;
  }

  function lastStep() {
    return Math.max(-1, ...[...logRows.values()].slice(-50).map((line) => line.step));
  }

  // Events during training.
  function handleRunEvent(kind, data) {
    if (loadedModel !== store.model.id) return;
    if (kind === "log_row") {
      logRows.delete(rowKey(data));
      logRows.set(rowKey(data), data);
      if (logRows.size > MAX_LOG_ROWS) thinLog();
    } else if (!run) return;
    else if (kind === "finished") {
      [run.result, run.training] = [data, false];
      if (state.get("part") === "run") loadPredictions(loadedModel);
    } else if (kind === "training") run.training = data;
    else return;
    scheduleRedraw();
  }

  // Drop every second training row; evaluations stay.
  function thinLog() {
    let count = 0;
    for (const [name, line] of logRows) if (!line.validation && (count += 1) % 2) logRows.delete(name);
  }

  function scheduleRedraw() {
    if (!timer) timer = setTimeout(() => { timer = 0; if (run && state.get("part") === "run") drawCurves(); }, 400);
  }

  function curves() {
    const sorted = [...logRows.values()].sort((one, other) => one.step - other.step);
    const of = (pick) => sorted.map((line) => [line.step, pick(line)]).filter(([, value]) => Number.isFinite(value));
    const nonEmpty = (list) => list.filter((line) => line.points.length);
    const layers = sorted.find((line) => line.attention_stats)?.attention_stats.distance.length ?? 0;
    return {
      loss: { y: "loss", lines: nonEmpty([{ name: "training", points: of((line) => line.loss) },
        { name: "validation", points: of((line) => line.validation?.loss) }]) },
      accuracy: { y: severalLabels() || ofPixels() || ofBoxes() ? "" : "accuracy", fraction: true, lines: nonEmpty([
        { name: ofPixels() ? "training, pixel accuracy" : "training", points: of((line) => line.accuracy) },
        { name: "validation, pixel accuracy", points: of((line) => line.validation?.pixel_accuracy) },
        { name: "validation, mean IoU", points: of((line) => line.validation?.miou) },
        { name: "validation, AP50", points: of((line) => line.validation?.ap50) },
        { name: "validation, AP", points: of((line) => line.validation?.ap) },
        { name: "validation, AP75", points: of((line) => line.validation?.ap75), dashed: true },
        { name: "validation, top-1", points: of((line) => line.validation?.top1) },
        { name: "validation, mean average precision (mAP)", points: of((line) => line.validation?.map) },
        { name: "validation, F1 over all labels", points: of((line) => line.validation?.["f1_micro_at_0.5"]), dashed: true },
        { name: "validation, top-5", points: of((line) => line.validation?.top5), dashed: true },
          { name: "k-nearest neighbours (kNN)", points: of((line) => line.validation?.knn) }]) },
      lr: { y: "", low: 0, lines: nonEmpty([{ name: "learning rate", points: of((line) => line.lr) }]) },
      grad_norm: { y: "norm", low: 0, lines: nonEmpty([{ name: "gradient norm", points: of((line) => line.grad_norm) }]) },
      distance: { y: "pixels", lines: Array.from({ length: layers }, (_, layer) => ({ name: `layer ${layer}`,
        points: of((line) => line.attention_stats?.distance[layer]), colour: LINE_COLOURS[layer % LINE_COLOURS.length], dashed: layer >= LINE_COLOURS.length })) },
    };
  }

  function drawCurves() {
    drawProgress();
    figures.accuracy.root.querySelector("h2").textContent = severalLabels() ? "Average precision and F1" : ofPixels() ? "IoU and pixel accuracy" : ofBoxes() ? "Average precision" : "Accuracy";
    const markedStep = state.number("step") ?? run.result?.best?.step ?? null;
    for (const [name, { y, lines: drawn, fraction, low }] of Object.entries(curves())) {
      figures[name].root.hidden = !drawn.length;
      if (!drawn.length) continue;
      const title = figures[name].root.querySelector("h2").textContent;
      figures[name].body.replaceChildren(chart({ title, x: "step", y, lines: drawn, fraction, low: fraction ? 0 : low, high: fraction ? 1 : undefined, integer: true,
        mark: markedStep, onpick: store.model.checkpoint_steps.length && !standalone ? selectNearest : null }),
        drawn.length > 1 || name === "accuracy" ? legend(drawn) : "");
    }
    figures.loss.caption(`Training: the loss of each batch${run.recipe?.augment ? ", with augmentation" : ""}; validation: on held-out `
      + `images. If the training loss falls while the validation loss rises, the model overfits.`);
    figures.accuracy.caption(run.recipe?.task.kind === "masked-image" ? "A run without labels is evaluated by kNN: how often the nearest training images, in its own "
      + "feature space, have the right class." : severalLabels() ? "Average precision needs no threshold; F1 is that of the labels at a probability of 0.5, since thresholds are chosen at the end." : ofPixels() ? "IoU: the pixels that are of a class and predicted as it, divided by those that are either; the mean is over the classes." : ofBoxes() ? AP_TEXT : "Training accuracy is measured on augmented images, so validation accuracy can be higher.");
    figures.lr.caption("Warm-up first, since early gradients are large and noisy; then it decays.");
    figures.grad_norm.caption("Norm of the gradient before clipping. A spike is an unusual batch.");
    figures.distance.caption("Mean over the heads of a layer, from the log. Some heads learn local attention, which nothing enforces.");
  }

  // Select the checkpoint nearest to a click on a curve; the keyboard has the slider in the header.
  function selectNearest(step) {
    const { checkpoint_steps } = store.model;
    state.set({ step: checkpoint_steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), checkpoint_steps[0]) });
  }

  function drawProgress() {
    const now = Math.max(0, lastStep()), text = `step ${now.toLocaleString("en")} of ${run.total_steps.toLocaleString("en")}`, best = run.result?.best;
    const summary = [run.name, run.dataset && `on ${run.dataset}`, run.result ? `finished in ${formatDuration(run.result.seconds)}` : run.training ? `training: ${text}`
      : `stopped at ${text}; run the same command to resume it`].filter(Boolean);
    const scores = Object.entries(best ?? {}).filter(([name]) => name !== "step")
      .map(([name, value]) => (name in METRIC_TITLES ? `${METRIC_TITLES[name]} ${percent(value)}` : `${name} ${formatNumber(value)}`));
    const score = best && `best at step ${best.step.toLocaleString("en")}: ${scores.join(", ")}`;
    const reportedScores = run.result?.[run.result.reported_on] ?? {}, known = Object.keys(METRIC_TITLES).filter((name) => Number.isFinite(reportedScores[name]));
    const reported = known.length > 0 && `${known.map((name) => `${METRIC_TITLES[name]} ${percent(reportedScores[name])}`).join(", ")} on ${run.result.reported_on} images`;
    progressBox.replaceChildren(el("p", {}, [...summary, score, reported].filter(Boolean).join(" · ")),
      standalone ? el("p", { class: "soft" }, "A saved page has no confusion matrix and no highest losses.") : "",
      run.result ? "" : el("progress", { max: run.total_steps, value: now, "aria-label": `Training: ${text}` }));
  }

  function severalLabels() {
    return run?.recipe?.task.kind === "multi-label";
  }

  function ofPixels() {
    return run?.recipe?.task.kind === "segmentation";
  }

  function ofBoxes() {
    return run?.recipe?.task.kind === "detection";
  }

  // The key of how much of a class there is.
  function amountOfClass() {
    return ofPixels() ? "pixels" : ofBoxes() ? "objects" : "support";
  }

  // The metrics of every label, or class of pixels or objects, the worst first; of those that do not occur there are none.
  function drawClasses(response) {
    classes = response.classes;
    const columns = ofPixels() ? PIXEL_COLUMNS : ofBoxes() ? BOX_COLUMNS : LABEL_COLUMNS, [[, first]] = columns, amount = amountOfClass();
    const sorted = [...classes].sort((one, other) => (one[amount] > 0 ? one[first] : 2) - (other[amount] > 0 ? other[first] : 2));
    const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, severalLabels() ? "label" : "class"), columns.map(([title]) => el("th", { scope: "col", class: "number" }, title)),
      el("th", { scope: "col", class: "number" }, severalLabels() ? "images" : amount)));
    const body = el("tbody", {}, sorted.map((one) => el("tr", {}, el("th", { scope: "row" }, one.name),
      columns.map(([, key]) => el("td", { class: "number" }, Number.isFinite(one[key]) && (one[amount] > 0 || key === "threshold") ? percent(one[key], 1) : "")), el("td", { class: "number" }, one[amount].toLocaleString("en")))));
    classesFigure.root.querySelector("h2").textContent = severalLabels() ? "Labels" : "Classes";
    classesFigure.body.replaceChildren(el("div", { class: "wide" }, el("table", { class: "label-metrics" }, head, body)));
    classesFigure.caption(ofPixels() ? `The pixels of all ${response.split} images together, the lowest IoU first; report.html has the confusion between classes and the worst images.` : ofBoxes() ? `The boxes in all ${response.split} images, the lowest AP first. ${AP_TEXT} Threshold: the score at which F1 is largest on these images; F1, precision and recall are those of the boxes above it.` : `${response.total.toLocaleString("en")} ${response.split} images, the lowest average precision first. An image may have several labels, so there is `
      + "no confusion matrix. A label is predicted if its probability reaches its threshold, which was chosen on validation for the largest F1.");
  }

  // The confusion matrix and losses exist once a run is finished, unless it trains without labels.
  async function loadPredictions(id) {
    if (standalone || run.recipe?.task.kind === "masked-image") return;
    if (!run.result) {
      confusionFigure.root.hidden = classesFigure.root.hidden = lossFigure.root.hidden = true;
      return;
    }
    if (ofPixels()) { // whose images have neither one class nor a saved loss
      classesFigure.root.hidden = !run.result.classes;
      if (run.result.classes) drawClasses({ classes: run.result.classes, split: run.result.reported_on });
      return;
    }
    if (ofBoxes() && run.result.classes) {
      classesFigure.root.hidden = false;
      drawClasses({ classes: run.result.classes, split: run.result.reported_on });
    }
    for (const [path, target, show] of ofBoxes() ? [["api/lowest-precision", lossFigure, drawWorst]]
      : [severalLabels() ? ["api/class-metrics", classesFigure, drawClasses] : ["api/confusion", confusionFigure, drawConfusion], ["api/highest-loss", lossFigure, drawWorst]]) {
      let response = null, reason = "";
      try {
        response = await fetchJson(path, { model: id });
      } catch (error) {
        reason = error.message;
      }
      if (loadedModel !== id) return;
      target.root.hidden = false;
      if (response) show(response);
      else target.body.replaceChildren(el("p", { class: "soft" }, reason));
      target.root.querySelector(".tools").hidden = !response;
    }
    markSelected();
    showCell().catch(showError);
  }

  // The images that are predicted worst.
  function drawWorst({ images }) {
    highestLoss = images;
    lossFigure.root.querySelector("h2").textContent = ofBoxes() ? "Lowest average precision" : "Highest losses";
    lossFigure.caption(ofBoxes() ? "AP50 of all boxes in an image in one ranking, whatever their class; images without objects have none. Select an image to see its boxes in the part Prediction." : "");
    drawThumbnails(lossFigure.body, images, (one) => (ofBoxes() ? null : `loss ${one.loss.toFixed(2)}`));
  }

  function drawConfusion(response) {
    matrix = response;
    const { class_names, class_indices = class_names.map((_, index) => index), matrix: counts, split, total } = response, dense = class_names.length > MAX_CLASSES_WITH_COUNTS;
    const sums = counts.map((row) => row.reduce((sum, one) => sum + one, 0));
    const body = el("tbody", {}, counts.map((row, y) => el("tr", {}, el("th", { scope: "row", title: class_names[y] }, class_names[y]), row.map((count, x) => {
      const text = `true ${class_names[y]}, predicted ${class_names[x]}: ${count}`;
      return el("td", { role: "gridcell", tabindex: y || x ? "-1" : "0", title: text, "aria-label": text,
        class: `${x === y ? "right" : count ? "wrong" : "none"}`, data: { at: `${class_indices[y]}-${class_indices[x]}`, y, x },
        style: x === y || !count ? {} : { "--fraction": Math.min(1, count / Math.max(1, sums[y]) * 3 + 0.12).toFixed(3) } },
          dense ? "" : count ? String(count) : "·");
    }))));
    const head = el("thead", {}, el("tr", {}, el("th", { class: "corner" }, "true ↓ predicted →"),
      class_names.map((name) => el("th", { scope: "col", title: name }, el("span", { class: dense ? "visually-hidden" : null }, name)))));
    const drawn = el("table", { class: `confusion${dense ? " dense" : ""}`, role: "grid", "aria-label": "Confusion matrix: true classes in rows, predicted classes in columns",
      onclick: (event) => openCell(event.target.closest("td")),
      onkeydown: (event) => moveFocus(event, body, class_names.length) }, head, body);
    confusionFigure.body.replaceChildren(el("div", { class: "matrix" }, el("div", { class: "wide" }, drawn), cellImages));
    const right = counts.reduce((sum, row, index) => sum + row[index], 0);
    confusionFigure.caption(`${total.toLocaleString("en")} ${split} images${class_names.length < store.model.class_names.length
      ? `; the ${class_names.length} most confused classes` : `, ${right.toLocaleString("en")} on the diagonal`}. Rows are true classes, columns predicted ones. `
      + "Select a cell to see its images, and an image to explain it in all parts. Arrow keys move, Enter opens.");
  }

  function moveFocus(event, body, count) {
    const cell = event.target.closest("td"), move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -count],
      End: [0, count] }[event.key];
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      openCell(cell);
    }
    if (!move) return;
    event.preventDefault();
    const within = (value) => Math.max(0, Math.min(count - 1, value)),
      next = body.rows[within(Number(cell.dataset.y) + move[0])].cells[within(Number(cell.dataset.x) + move[1]) + 1];
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  function openCell(cell) {
    if (cell) state.set({ cell: state.get("cell") === cell.dataset.at ? null : cell.dataset.at });
  }

  // Show the images of the cell in the URL.
  async function showCell() {
    const at = state.get("cell", ""), { id } = store.model;
    if (!matrix || openedCell === `${id} ${at}`) return;
    openedCell = `${id} ${at}`;
    for (const one of confusionFigure.body.querySelectorAll("td[aria-selected]")) one.removeAttribute("aria-selected");
    cellImages.replaceChildren();
    const [trueClass, predicted] = (/^(\d+)-(\d+)$/.exec(at) ?? []).slice(1);
    if (trueClass === undefined) return;
    confusionFigure.body.querySelector(`td[data-at="${at}"]`)?.setAttribute("aria-selected", "true");
    const response = await fetchJson("api/confused-images", { model: id, true: trueClass, predicted });
    if (openedCell !== `${id} ${at}`) return;
    const text = `True ${store.label(Number(trueClass))}, predicted ${store.label(Number(predicted))}: `
      + `${response.total.toLocaleString("en")}${response.total > response.images.length ? `, the ${response.images.length} most confident` : ""}`;
    const list = el("div");
    cellImages.replaceChildren(el("p", { role: "status" }, text), list);
    drawThumbnails(list, response.images, () => null);
    markSelected();
  }

  function drawThumbnails(target, images, more) {
    target.replaceChildren(el("ul", { class: "thumbs" }, images.map((one) => {
      const lines = ofBoxes() ? [`AP50 ${percent(one.ap50)}`, plural(one.objects, "object")] : one.labels ? labelDifferences(one) : [`true: ${one.label}`, `predicted: ${one.predicted}, ${percent(one.probability, 0).replaceAll(" ", "\u00a0")}`];
      const text = [...lines.map((line) => line.replaceAll(": ", " ").replaceAll("\u00a0", " ")), more(one)].filter(Boolean).join(", ");
      return el("li", {}, el("button", { type: "button", title: `${one.title}: ${text}`, "aria-label": `Explain ${one.title}: ${text}`,
        data: { image: one.id }, onclick: () => state.set({ image: one.id, class: null, query: null, pixel: null, box: null }) },
        el("img", { src: imageUrl(one.id, 96, ofBoxes()), alt: "", loading: "lazy", width: 84, height: 84 }),
          lines.map((line) => el("span", { class: "caption-line" }, line)), more(one) && el("span", { class: "soft" }, more(one))));
    })));
    markSelected();
  }

  function markSelected() {
    for (const one of section.querySelectorAll("button[data-image]")) one.setAttribute("aria-pressed", String(one.dataset.image === state.get("image")));
  }
}

function formatDuration(seconds) {
  return seconds < 120 ? `${formatNumber(seconds)} s` : seconds < 7200 ? `${formatNumber(seconds / 60)} minutes` : `${formatNumber(seconds / 3600)} hours`;
}

// What is wrong with the labels of an image: only what differs, since an image may have many.
function labelDifferences({ labels, missed, wrong }) {
  const list = (names) => `${names.slice(0, 5).join(", ")}${names.length > 5 ? ` and ${names.length - 5} more` : ""}`, right = labels.length - wrong.length;
  return [`${right} right`, missed.length ? `missed: ${list(missed)}` : "", wrong.length ? `wrong: ${list(wrong)}` : ""].filter(Boolean);
}

function precisionCode(store) {
  return ["import numpy as np", "import torch", "", "from vitrail.tasks.detected_images import load_detected_images", "from vitrail.tasks.detection_metrics import image_average_precision", "",
    `file = np.load(${JSON.stringify(`${store.model.source.replace(/\/$/, "")}/predictions.npz`)})`, "images = load_detected_images({name: torch.from_numpy(file[name]) for name in file})",
    "precision = np.array([image_average_precision(each) for each in images.matches()])", 'lowest = precision.argsort(kind="stable")[:24]  # images without objects have none, and come last',
    "print(precision[lowest], images.indices[lowest])"].join("\n");
}

function labelLossCode(store) {
  return predictionsCode(store, "scores, truth = torch.from_numpy(logits).double(), torch.from_numpy(labels).double()",
    'losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="none").sum(1)',
    "highest = losses.argsort(descending=True, stable=True)[:24]", "print(losses[highest], indices[highest])").replace('file["labels"]', 'file["targets"]');
}

function predictionsCode(store, ...text) {
  return ["import numpy as np", "import torch", "", `file = np.load(${JSON.stringify(`${store.model.source.replace(/\/$/, "")}/predictions.npz`)})`,
    'logits, labels, indices = file["logits"], file["labels"], file["indices"]', ...text].join("\n");
}
