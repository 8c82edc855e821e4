"""The page of `rag-r1 view` in a real browser: its views, growth, and what it says in trouble."""

from __future__ import annotations

import asyncio
import json

from rag_r1.agent.trajectory import Turn
from tests.explorer import made_records
from tests.explorer.page.page_player import IN_BROWSER, in_focus, in_page, opened, rows, state
from tests.explorer.page.sample_runs import (
    GOLD,
    PASSAGE,
    QUESTIONS,
    played,
    view_server,
    write_evaluation,
    write_records,
    write_training,
)
from tests.serving.browser import Tab, tab

pytestmark = IN_BROWSER


def test_the_table_counts_what_the_runs_hold_and_its_filters_are_its_address(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 24)
        assert await page.texts(".total") == ["24 trajectories · 45.8 % right"]
        await page.until("document.querySelectorAll('.facet').length > 4")
        await page.click(".choice input[data-column='run'][data-value='grpo']")
        await rows(page, 18)
        await page.click(".choice input[data-column='right'][data-value='false']")
        await rows(page, 9)
        await page.run("document.querySelector('.bars[data-range=step]').click()")  # as the keyboard does
        await page.run("document.querySelector('.range-form input').value = 1")
        await page.run("document.querySelector('.range-form').requestSubmit()")
        await rows(page, 7)
        assert await state(page) == {"run": "grpo", "right": "false", "step_min": "1"}
        assert f"Mill Creek, gold: {GOLD}" in await page.texts(".answers")
        await page.run("history.back()")
        await rows(page, 9)

    in_page(browser, url, play)


def test_a_link_shows_the_same_view_and_text_filters_every_part_of_a_record(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 7)
        assert await page.run("document.querySelector('input[type=search]').value") == "Creek"
        assert await page.texts("th[aria-sort] .sort") == ["Step ↓"]
        steps = await page.texts("td.c-step")
        assert steps == sorted(steps, reverse=True)
        await page.until("document.querySelector('.clear-all') !== null")
        await page.click(".clear-all")
        await rows(page, 24)

    in_page(browser, f"{url}#text=Creek&run=grpo&sort=step&order=desc", play)


def test_a_drag_over_a_histogram_sets_the_range_of_its_column(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 24)
        await page.until("document.querySelector('.bars[data-range=step] rect') !== null")
        box = await page.run("document.querySelector('[data-range=step]').getBoundingClientRect().toJSON()")
        for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
            x, y = box["x"] + share * box["width"], box["y"] + 10
            await page.send(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
            )
        await rows(page, 8)
        assert await state(page) == {"step_min": "1", "step_max": "2"}

    in_page(browser, url, play)


def test_a_trajectory_shows_its_turns_passages_tokens_reward_siblings_and_history(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 4)
        await page.click(".rows tbody tr:nth-child(2) a")
        await opened(page, QUESTIONS[0])
        assert await page.texts(".given") == [GOLD, GOLD]
        assert await page.texts(".outcome .verdict") == ["✓ right"]
        assert await page.texts(".key") == ["25 prompt", "23 generated", "60 observed"]
        assert await page.texts(".tokens h4") == [
            "Generated · 14 tokens",
            "Observed · 60 tokens",
            "Generated · 9 tokens",
        ]
        assert await page.texts(".call .said") == ["Karlen Ford", "river"]
        assert await page.texts(".passage.gold .title") == ["Karlen Ford"]
        assert set(await page.texts(".passage.gold mark")) == {GOLD}
        assert await page.texts(".credit") == ["credit 0", "credit +0.90"]
        assert await page.texts(".terms tbody td:first-child, .terms tfoot td") == ["em", "turn cost", "0.90"]
        assert len(await page.texts(".siblings li")) == 4
        assert "Advantage +0.87" in (await page.texts(".advantage"))[0]
        assert await page.texts(".history .step") == ["step 0", "step 1", "step 2", "step 3"]
        await page.run("document.querySelectorAll('.siblings a')[0].click()")
        await page.until("document.querySelector('.siblings li:nth-child(2) .this') !== null")

    in_page(browser, f"{url}#run=grpo&step_min=2&step_max=2", play)


def test_the_rollouts_of_a_group_stand_beside_each_other_with_mean_and_advantages(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 4)
        await page.press("j")
        await page.press("Enter")
        await page.until("document.querySelector('.siblings') !== null")
        await page.press("s")
        await page.until("document.querySelectorAll('.pair .trajectory').length === 4")
        assert await page.texts(".group") == ["Group of 4: mean 0.45, std 0.52"]
        scores = ["score 0.90, advantage +0.87"] * 2 + ["score 0, advantage −0.87"] * 2
        assert await page.texts(".pair section > .soft") == scores

    in_page(browser, f"{url}#run=grpo&step_min=2&step_max=2", play)


def test_answers_are_marked_by_words_in_any_writing(browser, url):
    cases = {
        ("He lives in karlen-ford; Karlen Fords", "Karlen Ford"): [[12, 23]],
        ("Born in Beatles Town", "The Beatles"): [[8, 15]],
        ("\u4ed6\u5728\u5317\u4eac\u5de5\u4f5c", "\u5317\u4eac"): [[2, 4]],
        ("yesterday", "yes"): [],
        ("a b", ""): [],
    }

    async def play(page: Tab) -> None:
        for (text, gold), places in cases.items():
            call = f"import('./marks.js').then((it) => it.places({json.dumps(text)}, [{json.dumps(gold)}]))"
            assert await page.run(call) == places, text

    in_page(browser, url, play)


def test_causes_are_counted_and_lead_to_the_table_and_to_examples(browser, url):
    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.cause').length > 1")
        assert (await page.texts(".sheet-head .soft"))[0].startswith("13 wrong trajectories")
        names = await page.texts(".cause h3 a")
        counts = [int(text.split()[0]) for text in await page.texts(".cause .n")]
        assert sum(counts) == 13 and counts == sorted(counts, reverse=True)
        assert len(await page.texts(".examples a")) == sum(min(count, 3) for count in counts)
        await page.click(".cause h3 a")
        await rows(page, counts[0])
        assert (await state(page))["cause"].replace("_", " ") == names[0]

    in_page(browser, f"{url}#view=causes", play)


def test_charts_have_one_measure_each_and_their_figures_as_a_table(browser, url):
    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.chart canvas').length > 3")
        titles = await page.texts(".chart h3")
        assert titles[:3] == ["Reward", "Exact match", "Searches"]
        assert await page.texts(".chart:nth-child(2) .legend li") == ["training 0.75", "validation 0.67"]
        await page.click(".chart:nth-child(2) summary")
        await page.until("document.querySelector('.figures tbody') !== null")
        figures = await page.texts(".chart:nth-child(2) .figures tr")
        assert figures == ["steptrainingvalidation", "00.33", "10.25", "20.50", "30.750.67"]

    in_page(browser, f"{url}#view=charts", play)


def test_a_comparison_shows_changed_verdicts_first_and_both_trajectories_of_a_question(browser, url):
    async def play(page: Tab) -> None:
        await page.until("document.querySelectorAll('.pairs tbody tr').length === 3")
        assert await page.texts(".tile") == ["▼1Lost", "▲1Gained", "✗1Wrong in both", "✓0Right in both"]
        assert await page.texts(".pairs .change") == ["▼ lost", "▲ gained", "✗ wrong in both"]
        await page.click(".tile.gained")
        await page.until("document.querySelectorAll('.pairs tbody tr').length === 1")
        assert await page.texts(".pairs td.question") == [QUESTIONS[1]]
        await page.click(".pairs a")
        await page.until("document.querySelectorAll('.pair .trajectory').length === 2")
        assert await page.texts(".pair .answered .given") == ["Mill Creek", GOLD]
        await page.press("Escape")
        await page.until("document.querySelectorAll('.pairs tbody tr').length === 1")
        assert await in_focus(page) == QUESTIONS[1]

    in_page(browser, f"{url}#view=compare&a=eval/before&b=eval/after", play)


def test_rewritten_contexts_removed_turns_failures_cut_passages_and_log_probs_are_shown(
    tmp_path, browser, cache
):
    record = played(0, GOLD).to_dict() | {"golds": [GOLD], "data_source": "w"}
    search, answer = record["turns"]
    cut = search | {"calls": [{**search["calls"][0], "documents": [PASSAGE.__dict__ | {"contents": '"Ka'}]}]}
    back = Turn("<backtrack> 2 </backtrack>", "backtrack", removed=[1], generated_tokens=5).to_dict()
    answer |= {"row": 1, "observation": []}
    tokens = {"response_ids": [7, 8, 9] * 3, "response_mask": [1] * 9}
    rows_of = [{"response_ids": [], "response_mask": [], "response_logprobs": None}]
    record["rows"] = [*rows_of, tokens | {"response_logprobs": [-0.01, -2.5, -4.0] * 3}]
    record["reward_weights"] = {"em": 1.0, "turn_cost": -0.05}
    search["calls"][0]["index"] = "wiki 1"
    search["observation"] = ["<information>", [0, 0], "</information>"]
    record["turns"] = [search, cut, back, answer]
    record["failures"] = [{"kind": "retriever", "turn": 0, "detail": "no answer in 30 s"}]
    write_records(tmp_path / "run", [record])

    async def play(page: Tab) -> None:
        await rows(page, 1)
        await page.click(".rows tbody a")
        await opened(page, QUESTIONS[0])
        assert await page.texts(".turn.removed h3") == ["Turn 2"]
        assert "taken out of the context in turn 3" in (await page.texts(".turn.removed .badge"))[0]
        line = await page.run(
            "getComputedStyle(document.querySelector('.turn.removed h3')).textDecorationLine"
        )
        assert line == "line-through"
        assert await page.texts(".rewritten") == ["Context rewritten without turn 2: training row 2 begins"]
        assert await page.texts(".turn .note.warn") == ["retriever failure: no answer in 30 s"]
        assert [text for text in await page.texts(".passage .badge") if "cut" in text] == [
            "cut by 61 characters"
        ]
        assert len(await page.texts(".strip span")) == 9
        unlikely = await page.run("document.querySelector('.strip .p4').title")
        assert unlikely == "token 3, id 9: log-prob -4.00, p = 0.018"
        assert await page.texts(".terms tbody tr") == ["em1× 1= 1", "turn cost2× -0.05= -0.10"]
        assert "index wiki 1" in (await page.texts(".how"))[0]
        seen = f"<information>{PASSAGE.contents}</information>"
        assert (await page.texts(".as-seen .text"))[0] == seen

    with view_server(tmp_path) as address:
        in_page(browser, address, play)


def test_a_run_that_grows_says_how_many_are_new_and_keeps_what_is_selected(tmp_path, browser, cache):
    dump = write_training(tmp_path / "grpo")

    async def play(page: Tab) -> None:
        await rows(page, 18)
        for _ in range(3):
            await page.press("j")
        selected = await page.run("document.querySelector('tr.selected a').hash")
        for sample in range(2):
            dump.write(played(1, GOLD, sample), step=4, split="train", golds=[GOLD], data_source="w")
        await page.until("document.getElementById('new').textContent === '2 new'")
        assert len(await page.texts(".rows tbody a")) == 18
        assert await page.run("document.querySelector('tr.selected a').hash") == selected
        await page.press("r")
        await rows(page, 20)
        assert await page.run("document.querySelector('tr.selected a').hash") == selected
        assert await page.run("document.getElementById('new').hidden")
        await page.press("2")  # causes
        await page.until("document.querySelector('.sheet-head .soft') !== null")
        assert (await page.texts(".sheet-head .soft"))[0].startswith("9 wrong")
        dump.write(played(0, "Mill Creek"), step=4, split="train", golds=[GOLD], data_source="w")
        await page.until("document.getElementById('new').textContent === '1 new'")
        await page.click("#new")
        await page.until("document.querySelector('.sheet-head .soft')?.textContent.startsWith('10 wrong')")

    with view_server(tmp_path) as address:
        in_page(browser, address, play)


def test_the_gold_stands_beside_what_was_judged_right_in_other_words(tmp_path, browser, cache):
    gold = made_records.GOLD
    answers = [f"the {gold.lower()}.", "Mill Creek"]
    records = [made_records.record(f"q{i}", text, right=True) for i, text in enumerate(answers)]
    made_records.write(tmp_path / "a.jsonl", records)

    async def play(page: Tab) -> None:
        await rows(page, 2)
        assert sorted(await page.texts(".answers")) == [f"Mill Creek, gold: {gold}", answers[0]]

    with view_server(tmp_path) as address:
        in_page(browser, address, play)


def test_a_folder_without_records_and_filters_without_rows_are_said(tmp_path, browser, cache):
    async def play(page: Tab) -> None:
        await page.until("document.querySelector('.notice h2')?.textContent === 'No trajectories yet'")
        write_evaluation(tmp_path / "later", GOLD)
        await rows(page, 1)
        await page.run("location.hash = '#text=nowhere'")
        title = "No trajectory matches these filters"
        await page.until(f"document.querySelector('.notice h2')?.textContent === '{title}'")
        await page.click(".notice button")
        await rows(page, 1)

    with view_server(tmp_path) as address:
        in_page(browser, address, play)


def test_a_trajectory_that_is_not_there_and_a_server_that_has_gone_are_said(tmp_path, browser, cache):
    write_evaluation(tmp_path / "run", GOLD)

    async def main() -> None:
        async with tab(browser) as page:
            with view_server(tmp_path) as address:
                await page.go(f"{address}#view=trajectory&tid=999")
                await page.until("document.querySelector('.notice[role=alert] button') !== null")
            await page.until("!document.getElementById('away').hidden")

    asyncio.run(main())


def test_the_page_asks_for_the_token(tmp_path, browser, cache):
    write_evaluation(tmp_path / "run", GOLD)

    async def play(page: Tab) -> None:
        for token in ("wrong", "t0ken"):
            await page.until("document.getElementById('login').open")
            await page.run(f"document.getElementById('token').value = '{token}'")
            await page.click("#login button")
        await rows(page, 1)

    with view_server(tmp_path, token="t0ken") as address:
        in_page(browser, address, play, problems=True)  # the requests without the token
