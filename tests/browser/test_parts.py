"""Every part is clicked through, and the numbers on the page are those of ``vitrail.explain``."""

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
from tests.browser.opening import LONG, WATCHED, Studio, look, opened, settled
from vitrail.explain.faithfulness import faithfulness
from vitrail.models.vit import ViT

pytestmark = pytest.mark.browser
PICTURE, NUMBER = "d0-test-3", 3


@pytest.fixture(scope="session")
def model(run: Path) -> ViT:
    loaded = vitrail.load(run)
    assert isinstance(loaded, ViT)
    return loaded


@pytest.fixture(scope="session")
def images(model: ViT) -> Tensor:
    return vitrail.prepare(model, [vitrail.pictures("fashion").test.content(NUMBER)])


def at(page: Page, studio: Studio, part: str, **state: Any) -> None:
    look(page, studio.at(part=part, picture=PICTURE, **state))
    settled(page)


def figure(page: Page, name: str) -> Locator:
    return page.locator(f'figure[data-figure="{name}"]')


def numbers(page: Page, name: str) -> Any:
    """What its JSON button gives."""
    with page.expect_download() as got:
        figure(page, name).get_by_role("button", name="JSON").click()
    return json.loads(got.value.path().read_text())


def close(found: Any, known: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(found).double(), torch.as_tensor(known).double(), rtol=tolerance, atol=tolerance)


def patch(page: Page, place: str, number: int, columns: int = 4, rows: int = 4) -> Position:
    """The middle of a patch, in pixels of the grid that it lies in."""
    box = page.locator(place).bounding_box()
    assert box is not None
    row, column = divmod(number, columns)
    return {"x": (column + 0.5) / columns * box["width"], "y": (row + 0.5) / rows * box["height"]}


SIDE = "#side .patchgrid"


def until(page: Page, script: str, argument: Any = None) -> None:
    """Asked again and again from outside: the page's own policy lets nobody evaluate words in it."""
    end = time.monotonic() + LONG / 1000
    while not page.evaluate(script, argument):
        assert time.monotonic() < end, script
        page.wait_for_timeout(50)


def test_the_side_has_the_answer_of_predict(page: Page, studio: Studio, model: ViT) -> None:
    at(page, studio, "picture")
    (known,) = vitrail.predict(model, [vitrail.pictures("fashion").test.content(NUMBER)])
    names = page.locator("#side .bars .name")
    assert names.all_inner_texts() == [guess.label for guess in known.top]
    shares = [float(text.rstrip(" %")) for text in page.locator("#side .bars .value").all_inner_texts()]
    assert shares == pytest.approx([100 * guess.probability for guess in known.top], abs=0.051)


def test_a_picture_is_chosen_and_its_way_to_numbers_is_shown(page: Page, studio: Studio, images: Tensor) -> None:
    at(page, studio, "picture")
    (grey,) = numbers(page, "preprocessing")["channels"]
    close([grey["mean"], grey["deviation"]], [images.mean().item(), images.std(correction=0).item()], 1e-3)
    close([grey["low"], grey["high"]], [images.min().item(), images.max().item()])
    page.locator("[data-picture=d0-test-5]").click()
    expect(page.locator("#side .title")).to_contain_text("5")
    page.wait_for_url("**picture=d0-test-5**")
    page.locator(".chooser select").first.select_option("samples")
    page.locator("[data-picture=sample-2]").click()
    expect(page.locator("#side .patchgrid")).to_be_visible()


def test_a_patch_has_its_pixels_index_row_and_column(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "patches")
    page.locator(SIDE).hover(position=patch(page, SIDE, 6))
    found = numbers(page, "patch")  # the pointer has left the picture for the button: what was pointed at is kept, or nothing
    page.locator(SIDE).click(position=patch(page, SIDE, 6))
    found = numbers(page, "patch")
    assert (found["patch"], found["row"], found["column"]) == (6, 1, 2)
    pixels = vitrail.pictures("fashion").test.content(NUMBER)
    assert isinstance(pixels, np.ndarray)
    assert found["pixels"] == pixels[7:14, 14:21, 0].ravel().tolist()
    flat = numbers(page, "embedding")
    close(flat["flat"], images[0, 0, 7:14, 14:21].ravel())
    close(flat["length"], model.patches(images)[0, 6].norm().item())


def test_tokens_are_as_long_as_explain_says(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "tokens")
    known = vitrail.explain.norms(model, images)[:, 0]
    found = numbers(page, "positions")
    close(found["embedded"], model.patches(images)[0].norm(dim=-1))
    close(found["together"], known[0])
    assert len(numbers(page, "tokens")["tokens"]) == 17
    slider = page.locator(".tokens input[type=range]")
    slider.focus()
    slider.press("Home")
    slider.press("ArrowRight")
    found = numbers(page, "lengths")
    assert found["state"] == 1
    close(found["lengths"], known[1])


def test_every_head_follows_the_patch_that_is_pointed_at(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "attention")
    close(numbers(page, "attention-wall")["weights"], vitrail.explain.pooled_attention(model, images)[:, 0])
    drawn = page.locator('figure[data-figure="attention-wall"] canvas').first
    before = drawn.evaluate("canvas => canvas.toDataURL()")
    page.locator(SIDE).hover(position=patch(page, SIDE, 9))
    until(page, "before => document.querySelector('[data-figure=attention-wall] canvas').toDataURL() !== before", before)
    assert float(page.evaluate("document.body.dataset.wall")) >= 0
    page.locator(SIDE).click(position=patch(page, SIDE, 9))
    found = numbers(page, "attention-wall")
    assert found["query"] == 10
    close(found["weights"], vitrail.explain.attention(model, images, queries=[10])[:, 0, :, 0])


def test_the_keyboard_alone_points_at_patches(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "attention")
    page.locator(SIDE).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    found = numbers(page, "attention-wall")
    assert found["query"] == 1 + 4 + 1
    close(found["weights"], vitrail.explain.attention(model, images, queries=[found["query"]])[:, 0, :, 0])


def test_one_weight_is_worked_out_from_q_and_k(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "attention", layer=1, head=2, query=3, key=7)
    known = vitrail.explain.attention(model, images, layers=[1], heads=[2], queries=[3])[0, 0, 0, 0]
    head = numbers(page, "attention-head")
    close(head["weights"], known)
    close(head["entropy"], -(known * known.log()).sum().item(), 1e-4)
    pair = numbers(page, "pair")
    close(pair["product"], float(np.dot(pair["q"], pair["k"])), 1e-4)
    assert pair["scale"] == pytest.approx(8**-0.5)
    close(np.exp(pair["product"] * pair["scale"] - pair["largest"]) / pair["total"], known[7].item())
    shown = figure(page, "pair").inner_text()
    assert f"{100 * known[7].item():.2f}"[:4] in shown


def test_flow_is_saliency_and_its_curves_are_faithfulness(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "flow", method="relevance")
    expect(figure(page, "flow-trust").get_by_role("row")).to_have_count(9)
    found = numbers(page, "flow-map")
    maps = vitrail.explain.saliency(model, images, "relevance")
    close(found["map"], maps[0].ravel())
    known = faithfulness(model, images, maps)
    curves = numbers(page, "flow-curves")["relevance"]
    close(curves["deletion"], known.deletion[0])
    close(curves["insertion"], known.insertion[0])
    trusted = {row["method"]: row for row in numbers(page, "flow-trust")}
    assert set(trusted) == {
        "rollout", "gradient_rollout", "relevance", "attention", "gradcam", "integrated", "random", "edges"
    }  # fmt: skip
    close(trusted["relevance"]["deleted"], known.deleted.item())


def test_another_class_is_explained(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "flow", method="gradient_rollout")
    page.locator("#side .bars button").nth(2).click()
    page.wait_for_url("**class=**")
    settled(page)
    target = int(page.url.split("class=")[1].split("&")[0])
    assert target == int(model(images)[0].argsort(descending=True)[2])
    expect(figure(page, "flow-trust").get_by_role("row")).to_have_count(9)
    close(numbers(page, "flow-map")["map"], vitrail.explain.gradient_rollout(model, images, torch.tensor([target]))[0].ravel())


def test_the_lens_is_what_each_layer_would_say(page: Page, studio: Studio, model: ViT, images: Tensor) -> None:
    at(page, studio, "lens")
    known = vitrail.explain.lens(model, images)[:, 0].softmax(-1)
    found = numbers(page, "lens-depth")
    close(found["probabilities"], known[:, found["classes"]])
    rows = numbers(page, "lens-table")
    assert [row["class"] for row in rows] == known.argmax(-1).tolist()


@pytest.mark.parametrize("how", ["Grey", "Shuffle", "Drop"])
def test_patches_that_are_taken_away_change_the_answer(
    page: Page, studio: Studio, model: ViT, images: Tensor, how: str
) -> None:
    at(page, studio, "prediction")
    page.get_by_role("button", name=how, exact=True).click()
    place = ".prediction .patchgrid"
    for number in (5, 6, 9):
        page.locator(place).click(position=patch(page, place, number))
    settled(page)
    expect(figure(page, "prediction")).to_contain_text("went from")
    settled(page)
    found = numbers(page, "prediction")
    kind = {"Grey": "mask", "Shuffle": "shuffle", "Drop": "drop"}[how]
    known = vitrail.explain.ablate(model, images, [5, 6, 9], kind)[0].softmax(0)
    close([row["after"] for row in found["top"]], known[[row["class"] for row in found["top"]]])
    page.wait_for_url("**patches=**")


def test_the_model_has_its_positions_filters_and_heads(page: Page, studio: Studio, model: ViT) -> None:
    at(page, studio, "inside")
    (found,) = numbers(page, "positions")
    close(found["similarity"]["data"], vitrail.explain.position_similarity(model).ravel())
    (found,) = numbers(page, "filters")
    close(found["filters"]["data"], vitrail.explain.filters(model).ravel(), 1e-4)
    test = vitrail.pictures("fashion").test
    known = vitrail.explain.heads(model, [vitrail.prepare(model, [test.content(number)]) for number in range(16)])
    (found,) = numbers(page, "distance")
    close(found["distance"]["data"], known.distance.ravel(), 1e-4)
    (found,) = numbers(page, "entropy")
    close(found["entropy"]["data"], known.entropy.ravel(), 1e-4)


def test_two_checkpoints_stand_side_by_side_and_the_scrubber_goes_over_them(page: Page, studio: Studio, run: Path) -> None:
    at(page, studio, "inside")
    choice = page.get_by_label("Beside it")
    option = next(one for one in choice.locator("option").all_inner_texts() if "3" in one)
    choice.select_option(option)
    settled(page)
    one, other = numbers(page, "filters")
    assert one["model"] != other["model"]
    close(other["filters"]["data"], vitrail.explain.filters(vitrail.model_at(run, 3)).ravel(), 1e-4)
    slider = page.get_by_label("Checkpoint")
    slider.focus()
    slider.press("Home")
    page.wait_for_url("**step=3**")
    settled(page)
    found = numbers(page, "filters")[0]
    close(found["filters"]["data"], vitrail.explain.filters(vitrail.model_at(run, 3)).ravel(), 1e-4)


def test_shapes_and_cost_follow_the_fields(page: Page, studio: Studio, model: ViT) -> None:
    WATCHED[page].expected = ("422",)  # as the browser says of the wrong number of heads
    at(page, studio, "shapes")
    assert numbers(page, "shapes")["parameters"] == sum(weight.numel() for weight in model.parameters())
    page.get_by_label("Depth").fill("5")
    page.wait_for_url("**s_depth=5**")
    settled(page)
    from dataclasses import replace

    known = vitrail.cost(replace(model.config, depth=5))
    expect(page.locator(".shapes")).to_contain_text(f"{known.parameters:,}")
    assert numbers(page, "shapes")["macs"] == known.macs
    page.get_by_label("Heads").fill("7")
    expect(page.locator(".shapes")).to_contain_text("heads")
    expect(page.locator(".shapes")).to_contain_text("try")  # one sentence, and the last good drawing stays
    assert numbers(page, "shapes")["macs"] == known.macs


def test_the_run_has_its_curves_its_confusion_and_its_worst(page: Page, studio: Studio, run: Path) -> None:
    at(page, studio, "run")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    training = next(line for line in numbers(page, "run-loss") if line["name"] == "training")
    close([loss for _, loss in training["points"]], [line["loss"] for line in lines if "loss" in line])
    with np.load(run / "predictions.npz") as kept:
        logits, labels = kept["logits"], kept["labels"]
    matrix = np.zeros((10, 10), int)
    np.add.at(matrix, (labels, logits.argmax(1)), 1)
    found = numbers(page, "confusion")
    assert found["matrix"] == matrix.tolist()
    true, said = np.unravel_index(np.argmax(matrix - np.diag(matrix.diagonal())), matrix.shape)
    figure(page, "confusion").locator(f'td[data-at="{true}-{said}"]').click()
    page.wait_for_url("**cell=**")
    settled(page)
    behind = figure(page, "confusion").locator("button img")
    assert behind.count() == min(matrix[true, said], 60)
    worst = numbers(page, "worst")
    losses = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), reduction="none")
    close([row["loss"] for row in worst], losses.sort(descending=True).values[:24], 1e-4)
    figure(page, "worst").get_by_role("button").filter(has=page.locator("img")).first.click()
    page.wait_for_url(f"**picture={worst[0]['id']}**")


@pytest.fixture
def learning(tmp_path: Path, run: Path) -> Path:
    """A run of which half is there."""
    half = tmp_path / "half"
    shutil.copytree(run, half)
    (half / "result.json").unlink()
    lines = (half / "log.jsonl").read_text().splitlines()
    (half / "log.jsonl").write_text("".join(f"{line}\n" for line in lines[:6]))
    shutil.rmtree(half / "checkpoints" / "step-12")
    return half


def test_a_run_is_followed_while_it_trains(page: Page, learning: Path, run: Path) -> None:
    WATCHED[page].expected = ("ERR_CONNECTION_REFUSED",)  # when the studio has ended before the page
    with opened([learning]) as studio:
        look(page, studio.at(part="run"))
        expect(page.locator(".run")).to_contain_text("of 12")
        assert page.get_by_label("Checkpoint").get_attribute("max") == "3"
        lines = (run / "log.jsonl").read_text().splitlines()
        with open(learning / "log.jsonl", "a") as log:
            log.writelines(f"{line}\n" for line in lines[6:])
        shutil.copytree(run / "checkpoints" / "step-12", learning / "checkpoints" / "step-12")
        until(page, "() => document.querySelector('#top input[type=range]').max === '4'")
        shutil.copy(run / "result.json", learning / "result.json")
        expect(figure(page, "confusion")).to_be_visible()
        losses = next(line for line in numbers(page, "run-loss") if line["name"] == "training")["points"]
        assert [step for step, _ in losses] == list(range(1, 13))


def test_a_slider_that_is_held_stays_while_the_run_goes_on(page: Page, learning: Path, run: Path) -> None:
    WATCHED[page].expected = ("ERR_CONNECTION_REFUSED",)
    with opened([learning]) as studio:
        look(page, studio.at(part="inside"))
        settled(page)
        place = page.get_by_label("Checkpoint").bounding_box()
        assert place is not None
        middle = place["y"] + place["height"] / 2
        page.mouse.move(place["x"] + place["width"] - 6, middle)
        page.mouse.down()
        page.mouse.move(place["x"] + place["width"] / 2, middle)
        shutil.copytree(run / "checkpoints" / "step-12", learning / "checkpoints" / "step-12")
        until(page, "() => document.querySelector('.inside .controls').textContent.includes('step 12')")
        page.mouse.move(place["x"] + 4, middle)
        page.mouse.up()
        page.wait_for_url("**step=3**")
        until(page, "() => document.querySelector('#top input[type=range]').max === '4'")


def test_better_weights_are_looked_into_though_no_checkpoint_is_new(page: Page, learning: Path, run: Path) -> None:
    WATCHED[page].expected = ("ERR_CONNECTION_REFUSED",)
    evaluation = [line for line in (run / "log.jsonl").read_text().splitlines() if '"validation"' in line][-1]
    with opened([learning]) as studio:
        look(page, studio.at(part="inside"))
        settled(page)
        with page.expect_request("**/api/model?**"), open(learning / "log.jsonl", "a") as log:
            log.write(f"{evaluation}\n")
        settled(page)


def test_what_the_log_gains_while_the_curves_are_on_their_way_is_in_them(page: Page, learning: Path, run: Path) -> None:
    WATCHED[page].expected = ("ERR_CONNECTION_REFUSED",)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/run?*", lambda route: held.append((route, route.fetch())))
    with opened([learning]) as studio:
        look(page, studio.at(part="run"))
        while not held:
            page.wait_for_timeout(50)
        lines = (run / "log.jsonl").read_text().splitlines()
        with page.expect_request("**/api/trace?again=**"), open(learning / "log.jsonl", "a") as log:
            log.writelines(f"{line}\n" for line in lines[6:])
        route, answer = held[0]
        route.fulfill(response=answer)
        settled(page)
        losses = next(line for line in numbers(page, "run-loss") if line["name"] == "training")["points"]
        assert [step for step, _ in losses] == list(range(1, 13))
