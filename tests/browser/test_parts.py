"""Every part is used by clicks, and the numbers on the page are those of ``vitrail.explain``."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import APIResponse, Locator, Page, Position, Route, expect
from torch import Tensor

import vitrail
from tests.browser.studio_page import (
    MOMENT_MS,
    TIMEOUT_MS,
    WATCHED_PAGES,
    RunningStudio,
    open_page,
    run_studio,
    wait_until_idle,
)
from vitrail.explain.faithfulness import faithfulness
from vitrail.models.vit import ViT

pytestmark = pytest.mark.browser
IMAGE_ID, IMAGE_INDEX = "d0-test-3", 3


@pytest.fixture(scope="session")
def model(run: Path) -> ViT:
    loaded = vitrail.load(run)
    assert isinstance(loaded, ViT)
    return loaded


@pytest.fixture(scope="session")
def images(model: ViT) -> Tensor:
    return vitrail.preprocess(model, [vitrail.open_dataset("fashion").test.read(IMAGE_INDEX)])


def open_at(page: Page, studio: RunningStudio, part: str, **state: Any) -> None:
    open_page(page, studio.link(part=part, image=IMAGE_ID, **state))
    wait_until_idle(page, MOMENT_MS)


def find_figure(page: Page, name: str) -> Locator:
    return page.locator(f'figure[data-figure="{name}"]')


def download_numbers(page: Page, name: str) -> Any:
    """Return the numbers that its JSON button downloads."""
    with page.expect_download() as got:
        find_figure(page, name).get_by_role("button", name="JSON").click()
    return json.loads(got.value.path().read_text())


def assert_close(result: Any, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(
        torch.tensor(result).double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance
    )


def patch_centre(page: Page, selector: str, number: int, columns: int = 4, rows: int = 4) -> Position:
    """Return the centre of a patch, in pixels of its grid."""
    box = page.locator(selector).bounding_box()
    assert box is not None
    row, column = divmod(number, columns)
    return {"x": (column + 0.5) / columns * box["width"], "y": (row + 0.5) / rows * box["height"]}


SIDE_GRID = "#side .patch-grid"


def wait_until(page: Page, script: str, argument: Any = None) -> None:
    """Poll from outside: the page's content security policy does not allow eval in it."""
    end = time.monotonic() + TIMEOUT_MS / 1000
    while not page.evaluate(script, argument):
        assert time.monotonic() < end, script
        page.wait_for_timeout(50)


def test_the_side_panel_has_the_prediction(page: Page, studio: RunningStudio, model: ViT) -> None:
    open_at(page, studio, "image")
    (expected,) = vitrail.predict(model, [vitrail.open_dataset("fashion").test.read(IMAGE_INDEX)])
    names = page.locator("#side .bars .name")
    assert names.all_inner_texts() == [guess.label for guess in expected.top]
    percentages = [float(text.rstrip(" %")) for text in page.locator("#side .bars .value").all_inner_texts()]
    assert percentages == pytest.approx([100 * guess.probability for guess in expected.top], abs=0.051)


def test_an_image_is_selected_and_its_preprocessing_is_shown(page: Page, studio: RunningStudio, images: Tensor) -> None:
    open_at(page, studio, "image")
    (grey,) = download_numbers(page, "preprocessing")["channels"]
    assert_close([grey["mean"], grey["std"]], [images.mean().item(), images.std(correction=0).item()], 1e-3)
    assert_close([grey["low"], grey["high"]], [images.min().item(), images.max().item()])
    page.locator("[data-image=d0-test-5]").click()
    expect(page.locator("#side .title")).to_contain_text("5")
    page.wait_for_url("**image=d0-test-5**")
    page.locator(".chooser select").first.select_option("samples")
    page.locator("[data-image=sample-2]").click()
    expect(page.locator("#side .patch-grid")).to_be_visible()


def test_a_patch_has_its_pixels_index_row_and_column(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "patches")
    page.locator(SIDE_GRID).hover(position=patch_centre(page, SIDE_GRID, 6))
    result = download_numbers(page, "patch")  # the pointer has left the image for the button
    page.locator(SIDE_GRID).click(position=patch_centre(page, SIDE_GRID, 6))
    result = download_numbers(page, "patch")
    assert (result["patch"], result["row"], result["column"]) == (6, 1, 2)
    pixels = vitrail.open_dataset("fashion").test.read(IMAGE_INDEX)
    assert isinstance(pixels, np.ndarray)
    assert result["pixels"] == pixels[7:14, 14:21, 0].ravel().tolist()
    flat = download_numbers(page, "embedding")
    assert_close(flat["flat"], images[0, 0, 7:14, 14:21].ravel())
    assert_close(flat["length"], model.embed_patches(images)[0, 6].norm().item())


def test_token_norms_are_those_of_explain(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "tokens")
    expected = vitrail.explain.token_norms(model, images)[:, 0]
    result = download_numbers(page, "position-norms")
    assert_close(result["patch_norms"], model.embed_patches(images)[0].norm(dim=-1))
    assert_close(result["tokens"], expected[0])
    assert len(download_numbers(page, "tokens")["tokens"]) == 17
    slider = page.locator(".tokens input[type=range]")
    slider.focus()
    slider.press("Home")
    slider.press("ArrowRight")
    result = download_numbers(page, "token-norms")
    assert result["state"] == 1
    assert_close(result["norms"], expected[1])


def test_every_head_follows_the_active_patch(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "attention")
    assert_close(download_numbers(page, "attention-grid")["weights"], vitrail.explain.pooled_attention(model, images)[:, 0])
    samples = page.locator('figure[data-figure="attention-grid"] canvas').first
    before = samples.evaluate("canvas => canvas.toDataURL()")
    page.locator(SIDE_GRID).hover(position=patch_centre(page, SIDE_GRID, 9))
    wait_until(page, "before => document.querySelector('[data-figure=attention-grid] canvas').toDataURL() !== before", before)
    assert float(page.evaluate("document.body.dataset.redrawMs")) >= 0
    page.locator(SIDE_GRID).click(position=patch_centre(page, SIDE_GRID, 9))
    result = download_numbers(page, "attention-grid")
    assert result["query"] == 10
    assert_close(result["weights"], vitrail.explain.attention(model, images, queries=[10])[:, 0, :, 0])


@pytest.mark.thorough
def test_the_keyboard_alone_points_at_patches(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "attention")
    page.locator(SIDE_GRID).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    result = download_numbers(page, "attention-grid")
    assert result["query"] == 1 + 4 + 1
    assert_close(result["weights"], vitrail.explain.attention(model, images, queries=[result["query"]])[:, 0, :, 0])


def test_one_weight_is_computed_from_q_and_k(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "attention", layer=1, head=2, query=3, key=7)
    expected = vitrail.explain.attention(model, images, layers=[1], heads=[2], queries=[3])[0, 0, 0, 0]
    head = download_numbers(page, "attention-head")
    assert_close(head["weights"], expected)
    assert_close(head["entropy"], -(expected * expected.log()).sum().item(), 1e-4)
    pair = download_numbers(page, "attention-pair")
    assert_close(pair["product"], float(np.dot(pair["q"], pair["k"])), 1e-4)
    assert pair["scale"] == pytest.approx(8**-0.5)
    assert_close(np.exp(pair["product"] * pair["scale"] - pair["max_score"]) / pair["exp_sum"], expected[7].item())
    printed = find_figure(page, "attention-pair").inner_text()
    assert f"{100 * expected[7].item():.2f}"[:4] in printed


def test_the_saliency_map_and_its_curves_are_those_of_explain(
    page: Page, studio: RunningStudio, model: ViT, images: Tensor
) -> None:
    open_at(page, studio, "saliency", method="relevance")
    expect(find_figure(page, "faithfulness-table").get_by_role("row")).to_have_count(9)
    result = download_numbers(page, "saliency-map")
    maps = vitrail.explain.saliency(model, images, "relevance")
    assert_close(result["map"], maps[0].ravel())
    expected = faithfulness(model, images, maps)
    curves = download_numbers(page, "faithfulness-curves")["relevance"]
    assert_close(curves["deletion"], expected.deletion_curve[0])
    assert_close(curves["insertion"], expected.insertion_curve[0])
    scores_by_method = {row["method"]: row for row in download_numbers(page, "faithfulness-table")}
    assert set(scores_by_method) == {
        "rollout", "gradient_rollout", "relevance", "attention", "gradcam", "integrated_gradients", "random", "edges"
    }  # fmt: skip
    assert_close(scores_by_method["relevance"]["deletion_auc"], expected.deletion_auc.item())


@pytest.mark.thorough
def test_another_class_is_explained(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "saliency", method="gradient_rollout")
    page.locator("#side .bars button").nth(2).click()
    page.wait_for_url("**class=**")
    wait_until_idle(page)
    target = int(page.url.split("class=")[1].split("&")[0])
    assert target == int(model(images)[0].argsort(descending=True)[2])
    expect(find_figure(page, "faithfulness-table").get_by_role("row")).to_have_count(9)
    assert_close(
        download_numbers(page, "saliency-map")["map"],
        vitrail.explain.gradient_rollout(model, images, torch.tensor([target]))[0].ravel(),
    )


def test_the_logit_lens_is_that_of_explain(page: Page, studio: RunningStudio, model: ViT, images: Tensor) -> None:
    open_at(page, studio, "lens")
    expected = vitrail.explain.logit_lens(model, images)[:, 0].softmax(-1)
    result = download_numbers(page, "lens-depth")
    assert_close(result["probabilities"], expected[:, result["classes"]])
    rows = download_numbers(page, "lens-table")
    assert [row["class"] for row in rows] == expected.argmax(-1).tolist()


@pytest.mark.parametrize(
    "how", [pytest.param("Mask", marks=pytest.mark.thorough), pytest.param("Shuffle", marks=pytest.mark.thorough), "Drop"]
)
def test_removed_patches_change_the_prediction(page: Page, studio: RunningStudio, model: ViT, images: Tensor, how: str) -> None:
    open_at(page, studio, "prediction")
    page.get_by_role("button", name=how, exact=True).click()
    grid = ".prediction .patch-grid:visible"
    for number in (5, 6, 9):
        page.locator(grid).click(position=patch_centre(page, grid, number))
    wait_until_idle(page)
    expect(find_figure(page, "prediction")).to_contain_text("went from")
    wait_until_idle(page)
    result = download_numbers(page, "prediction")
    kind = {"Mask": "mask", "Shuffle": "shuffle", "Drop": "drop"}[how]
    expected = vitrail.explain.ablate(model, images, [5, 6, 9], kind)[0].softmax(0)
    assert_close([row["after"] for row in result["top"]], expected[[row["class"] for row in result["top"]]])
    page.wait_for_url("**patches=**")


def test_the_model_has_its_positions_filters_and_heads(page: Page, studio: RunningStudio, model: ViT) -> None:
    open_at(page, studio, "model")
    (result,) = download_numbers(page, "position-similarity")
    assert_close(result["position_similarity"]["data"], vitrail.explain.position_similarity(model).ravel())
    (result,) = download_numbers(page, "filters")
    assert_close(result["filters"]["data"], vitrail.explain.patch_filters(model).ravel(), 1e-4)
    test = vitrail.open_dataset("fashion").test
    expected = vitrail.explain.head_statistics(model, [vitrail.preprocess(model, [test.read(number)]) for number in range(16)])
    (result,) = download_numbers(page, "attention-distance")
    assert_close(result["distance"]["data"], expected.distance.ravel(), 1e-4)
    (result,) = download_numbers(page, "attention-entropy")
    assert_close(result["entropy"]["data"], expected.entropy.ravel(), 1e-4)


def test_two_checkpoints_are_compared_and_the_slider_selects_them(page: Page, studio: RunningStudio, run: Path) -> None:
    open_at(page, studio, "model")
    choice = page.get_by_label("Compare with")
    option = next(one for one in choice.locator("option").all_inner_texts() if "3" in one)
    choice.select_option(option)
    wait_until_idle(page)
    one, other = download_numbers(page, "filters")
    assert one["model"] != other["model"]
    assert_close(other["filters"]["data"], vitrail.explain.patch_filters(vitrail.load_checkpoint(run, 3)).ravel(), 1e-4)
    slider = page.get_by_label("Checkpoint")
    slider.focus()
    slider.press("Home")
    page.wait_for_url("**step=3**")
    wait_until_idle(page)
    result = download_numbers(page, "filters")[0]
    assert_close(result["filters"]["data"], vitrail.explain.patch_filters(vitrail.load_checkpoint(run, 3)).ravel(), 1e-4)


def test_the_architecture_and_cost_follow_the_fields(page: Page, studio: RunningStudio, model: ViT) -> None:
    WATCHED_PAGES[page].expected_errors = ("422",)  # console message of the invalid number of heads
    open_at(page, studio, "architecture")
    assert download_numbers(page, "architecture")["parameters"] == sum(weight.numel() for weight in model.parameters())
    page.get_by_label("Depth").fill("5")
    page.wait_for_url("**arch_depth=5**")
    wait_until_idle(page)
    from dataclasses import replace

    expected = vitrail.cost(replace(model.config, depth=5))
    expect(page.locator(".architecture")).to_contain_text(f"{expected.parameters:,}")
    assert download_numbers(page, "architecture")["macs"] == expected.macs
    page.get_by_label("Heads").fill("7")
    expect(page.locator(".architecture")).to_contain_text("heads")
    expect(page.locator(".architecture")).to_contain_text("try")  # one sentence, and the last valid drawing stays
    assert download_numbers(page, "architecture")["macs"] == expected.macs


def test_the_run_has_its_curves_confusion_matrix_and_highest_losses(page: Page, studio: RunningStudio, run: Path) -> None:
    open_at(page, studio, "run")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    training = next(line for line in download_numbers(page, "run-loss") if line["name"] == "training")
    assert_close([loss for _, loss in training["points"]], [line["loss"] for line in lines if "loss" in line])
    with np.load(run / "predictions.npz") as file:
        logits, labels = file["logits"], file["labels"]
    matrix = np.zeros((10, 10), int)
    np.add.at(matrix, (labels, logits.argmax(1)), 1)
    result = download_numbers(page, "confusion")
    assert result["matrix"] == matrix.tolist()
    true, predicted = np.unravel_index(np.argmax(matrix - np.diag(matrix.diagonal())), matrix.shape)
    find_figure(page, "confusion").locator(f'td[data-at="{true}-{predicted}"]').click()
    page.wait_for_url("**cell=**")
    wait_until_idle(page)
    behind = find_figure(page, "confusion").locator("button img")
    assert behind.count() == min(matrix[true, predicted], 60)
    worst = download_numbers(page, "highest-loss")
    losses = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), reduction="none")
    assert_close([row["loss"] for row in worst], losses.sort(descending=True).values[:24], 1e-4)
    find_figure(page, "highest-loss").get_by_role("button").filter(has=page.locator("img")).first.click()
    page.wait_for_url(f"**image={worst[0]['id']}**")


@pytest.mark.thorough
def test_a_run_with_several_labels_has_a_table_of_them_and_thresholds(page: Page, label_run: Path) -> None:
    result = json.loads((label_run / "result.json").read_text())
    with run_studio([label_run]) as studio:
        open_page(page, studio.link(part="run", image=IMAGE_ID))
        rows = find_figure(page, "classes").locator("tbody tr")
        expect(rows).to_have_count(3)
        ordered = sorted(result["classes"], key=lambda one: one["ap"])
        assert [rows.nth(index).locator("th").inner_text() for index in range(3)] == [one["name"] for one in ordered]
        assert rows.first.locator("td").first.inner_text() == f"{100 * ordered[0]['ap']:.1f} %"
        expect(find_figure(page, "confusion")).to_be_hidden()
        expect(find_figure(page, "run-accuracy")).to_contain_text("validation, F1 over all labels")
        worst = download_numbers(page, "highest-loss")
        assert [one["loss"] for one in worst] == sorted((one["loss"] for one in worst), reverse=True)
        find_figure(page, "highest-loss").get_by_role("button").filter(has=page.locator("img")).first.click()
        page.wait_for_url(f"**image={worst[0]['id']}**")
        wait_until_idle(page)
        bars = page.locator("#side .predictions li")
        expect(bars).to_have_count(3)
        expect(page.locator("#side .predictions li.reached")).to_have_count(len(worst[0]["labels"]))
        assert bars.locator(".threshold").count() == 3
        bars.nth(1).locator("button").click()  # each label can be explained
        page.wait_for_url("**class=**")


@pytest.fixture
def unfinished_run(tmp_path: Path, run: Path) -> Path:
    """A run with half of its log."""
    half = tmp_path / "half"
    shutil.copytree(run, half)
    (half / "result.json").unlink()
    lines = (half / "log.jsonl").read_text().splitlines()
    (half / "log.jsonl").write_text("".join(f"{line}\n" for line in lines[:6]))
    shutil.rmtree(half / "checkpoints" / "step-12")
    return half


@pytest.mark.thorough
def test_a_run_is_updated_during_training(page: Page, unfinished_run: Path, run: Path) -> None:
    WATCHED_PAGES[page].expected_errors = ("ERR_CONNECTION_REFUSED",)  # the studio ends before the page
    with run_studio([unfinished_run]) as studio:
        open_page(page, studio.link(part="run"))
        expect(page.locator(".run")).to_contain_text("of 12")
        assert page.get_by_label("Checkpoint").get_attribute("max") == "3"
        lines = (run / "log.jsonl").read_text().splitlines()
        with open(unfinished_run / "log.jsonl", "a") as log:
            log.writelines(f"{line}\n" for line in lines[6:])
        shutil.copytree(run / "checkpoints" / "step-12", unfinished_run / "checkpoints" / "step-12")
        wait_until(page, "() => document.querySelector('#top input[type=range]').max === '4'")
        shutil.copy(run / "result.json", unfinished_run / "result.json")
        expect(find_figure(page, "confusion")).to_be_visible()
        losses = next(line for line in download_numbers(page, "run-loss") if line["name"] == "training")["points"]
        assert [step for step, _ in losses] == list(range(1, 13))


@pytest.mark.thorough
def test_a_dragged_slider_stays_during_training(page: Page, unfinished_run: Path, run: Path) -> None:
    WATCHED_PAGES[page].expected_errors = ("ERR_CONNECTION_REFUSED",)
    with run_studio([unfinished_run]) as studio:
        open_page(page, studio.link(part="model"))
        wait_until_idle(page)
        slider = page.get_by_label("Checkpoint").bounding_box()
        assert slider is not None
        middle = slider["y"] + slider["height"] / 2
        page.mouse.move(slider["x"] + slider["width"] - 6, middle)
        page.mouse.down()
        page.mouse.move(slider["x"] + slider["width"] / 2, middle)
        shutil.copytree(run / "checkpoints" / "step-12", unfinished_run / "checkpoints" / "step-12")
        wait_until(page, "() => document.querySelector('.model .controls').textContent.includes('step 12')")
        page.mouse.move(slider["x"] + 4, middle)
        page.mouse.up()
        page.wait_for_url("**step=3**")
        wait_until(page, "() => document.querySelector('#top input[type=range]').max === '4'")


@pytest.mark.thorough
def test_new_best_weights_are_loaded_without_a_new_checkpoint(page: Page, unfinished_run: Path, run: Path) -> None:
    WATCHED_PAGES[page].expected_errors = ("ERR_CONNECTION_REFUSED",)
    evaluation = [line for line in (run / "log.jsonl").read_text().splitlines() if '"validation"' in line][-1]
    with run_studio([unfinished_run]) as studio:
        open_page(page, studio.link(part="model"))
        wait_until_idle(page)
        with page.expect_request("**/api/model?**"), open(unfinished_run / "log.jsonl", "a") as log:
            log.write(f"{evaluation}\n")
        wait_until_idle(page)


@pytest.mark.thorough
def test_log_rows_that_arrive_while_the_curves_load_are_in_them(page: Page, unfinished_run: Path, run: Path) -> None:
    WATCHED_PAGES[page].expected_errors = ("ERR_CONNECTION_REFUSED",)
    pending: list[tuple[Route, APIResponse]] = []
    page.route("**/api/run?*", lambda route: pending.append((route, route.fetch())))
    with run_studio([unfinished_run]) as studio:
        open_page(page, studio.link(part="run"))
        while not pending:
            page.wait_for_timeout(50)
        lines = (run / "log.jsonl").read_text().splitlines()
        with page.expect_request("**/api/trace?**weights_version=**"), open(unfinished_run / "log.jsonl", "a") as log:
            log.writelines(f"{line}\n" for line in lines[6:])
        route, response = pending[0]
        route.fulfill(response=response)
        wait_until_idle(page)
        losses = next(line for line in download_numbers(page, "run-loss") if line["name"] == "training")["points"]
        assert [step for step, _ in losses] == list(range(1, 13))
