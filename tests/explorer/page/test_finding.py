"""From a symptom to its trajectories in the page of `rag-r1 view`: charts, filters, search, comparison."""

from __future__ import annotations

import json

from rag_r1.agent.records import TrajectoryDump
from tests.explorer.page.page_player import IN_BROWSER, in_page, opened, rows, state
from tests.explorer.page.sample_runs import GOLD, QUESTIONS, played, view_server, write_training
from tests.serving.browser import Tab

pytestmark = IN_BROWSER
#: Clicks on a line of the second chart (exact match) at a share of its width, where the line is lowest.
CLICK = """(share) => {
    const over = document.querySelectorAll('.u-over')[1], box = over.getBoundingClientRect();
    const at = { clientX: box.left + share * box.width, clientY: box.bottom - 3, bubbles: true };
    for (const kind of ['pointerdown', 'pointerup']) over.dispatchEvent(new PointerEvent(kind, at));
}"""


def test_a_point_of_a_chart_opens_its_trajectories_and_the_views_keep_the_filters(browser, url):
    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.chart canvas').length > 3")
        await page.run(f"({CLICK})(0.34)")
        await rows(page, 4)
        filters = {"run": "grpo", "kind": "training", "step_min": "1", "step_max": "1"}
        assert await state(page) == filters
        await page.press("2")
        await page.until("document.querySelectorAll('.filter-line button').length === 5")
        assert (await page.texts(".sheet-head .soft"))[0].startswith("3 wrong trajectories")
        await page.press("3")
        line = "document.querySelector('.chart:nth-child(2) .legend')?.textContent"
        await page.until(f"{line} === 'training 0.25'")
        await page.click(".filter-line button:nth-of-type(3)")
        await page.until("document.querySelectorAll('.filter-line button').length === 3")
        await page.click(".clear-line")
        await page.until(f"{line} === 'training 0.75validation 0.67'")

    in_page(browser, f"{url}#view=charts", play)


def test_a_cause_has_the_same_colour_in_all_charts(browser, url):
    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.chart canvas').length > 3")
        found = await page.run(
            "[...document.querySelectorAll('.chart')].filter((one) => one.textContent.startsWith('Causes'))"
            ".flatMap((one) => [...one.querySelectorAll('.legend li')]"
            ".map((item) => [item.querySelector('.swatch').className, item.children[1].textContent]))"
        )
        names = {name for _, name in found}
        assert len(names) > 1 and len({tuple(one) for one in found}) == len(names) < len(found)

    in_page(browser, f"{url}#view=charts", play)


def test_values_and_groups_of_filters_keep_their_places(browser, url):
    places = "[...document.querySelectorAll('.facet legend, .choice .name')].map((one) => one.textContent)"

    async def play(page: Tab) -> None:
        await rows(page, 24)
        await page.until("document.querySelectorAll('.facet').length > 4")
        before = await page.run(places)
        await page.click(".choice input[data-column='kind'][data-value='validation']")
        await rows(page, 6)
        await page.until("document.querySelector('.clear-all:enabled') !== null")
        assert await page.run(places) == before

    in_page(browser, url, play)


def test_a_text_that_was_searched_is_marked_and_its_parts_are_named(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 4)
        await page.click(".rows tbody a")
        await opened(page, QUESTIONS[0])
        assert await page.texts(".found-line button") == ["answer (1 time)", "generated (1 time)"]
        marks = "[...CSS.highlights.get('found')].map(String)"
        assert await page.run(marks) == ["Mill Creek", "Mill Creek"]
        await page.run("location.hash = ''")
        await rows(page, 24)
        assert not await page.run("CSS.highlights.has('found')")

    in_page(browser, f"{url}#run=grpo&kind=training&kind=validation&text=mill%20cREEK&step_max=1", play)


def test_next_goes_on_from_a_rollout_that_the_table_does_not_list(browser, url):
    place = "document.querySelector('.reader-head .soft')?.textContent"
    second = "document.querySelector('.siblings li:nth-child(2) .this') !== null"

    async def play(page: Tab) -> None:
        await rows(page, 4)
        await page.click(".rows tbody tr:nth-child(2) a")
        for key, shown in (("", "1 of 4"), ("]", "2 of 4")):
            await page.press(key) if key else None
            await page.until(f"{place} === '{shown}'")
        await page.until(second)
        await page.click(".history a")
        await page.until(f"{place} === 'beside 2 of 4'")
        await page.press("[")
        await page.until(f"{place} === '2 of 4'")
        await page.until(second)
        await page.click(".siblings a")  # the table lists it
        await page.until(f"{place} === '1 of 4'")

    in_page(browser, f"{url}#run=grpo&step_min=2&step_max=2", play)


def test_one_run_is_compared_with_itself_from_its_first_to_its_last_validation(tmp_path, browser, cache):
    write_training(tmp_path / "grpo")

    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.pairs tbody tr').length === 3")
        assert (await state(page))["a_step"] == "0" and (await state(page))["b_step"] == "3"
        assert (await page.texts(".tile.gained b")) == ["1"]

    with view_server(tmp_path) as address:
        in_page(browser, f"{address}#view=compare", play)


def test_charts_say_that_the_reward_rises_while_exact_match_falls_and_name_the_term(tmp_path, browser, cache):
    dump = TrajectoryDump(str(tmp_path / "run" / "trajectories"))
    for step, right in enumerate((1, 3, 2)):
        for number in range(4):
            one = played(0, GOLD if number < right else "Mill Creek", number)
            one.rewards |= {"searches": 5.0 * step, "turn_cost": 2.0 + step, "score": 0.5 + 0.4 * step}
            weights = {"em": 1.0, "searches": 0.08, "turn_cost": -0.05}
            dump.write(one, step=step, split="val", golds=[GOLD], data_source="w", reward_weights=weights)

    async def play(page: Tab) -> None:
        await page.until("document.querySelector('.divergence') !== null")
        assert await page.texts(".divergence") == [
            "From step 1 to 2 the validation reward rises from 0.90 to 1.30, while exact match falls from "
            "0.75 to 0.50. The reward term that grew most is searches: its weighted mean by 0.40."
        ]
        score = {"name": "validation: score", "x": [0, 1, 2], "y": [0.1, 0.2, 0.3]}
        for em, holds in (([0.5, 0.6, 0.59], False), ([0.5, 0.6, 0.57], True), ([0.5, 0.6, 0.7], False)):
            both = json.dumps([score, {"name": "validation: right", "x": [0, 1, 2], "y": em}])
            call = f"import('./divergence.js').then((it) => it.diverging({both}) !== null)"
            assert await page.run(call) == holds, em
        assert await page.run("import('./dom.js').then((it) => it.amount(-0))") == "0"

    with view_server(tmp_path) as address:
        in_page(browser, f"{address}#view=charts", play)
