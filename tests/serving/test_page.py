"""The chat page in a real browser: what it shows, stop and retry, and that no text can run a script in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from rag_r1.http_server.stopping import RETRY_S, STOPPING
from rag_r1.serving.page import ExampleQuestion, PageInfo
from rag_r1.serving.wire import MAX_MESSAGES
from tests.serving.browser import CHROMIUM, Tab, chromium, tab
from tests.serving.picture import take_picture
from tests.serving.running_chat import GOLD, QUESTION, arguments, chat_server, policy_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]

BUTTONS = "[...document.querySelectorAll('.after button')]"
ATTACK = "<img src=x onerror=\"window.ran='{0}'\"><script>window.ran='{0}'</script>"
HOSTILE = f"Who? {ATTACK.format('question')}"
HOSTILE_GOLD = f"It is {ATTACK.format('answer')}"
HOSTILE_PASSAGES = (
    (ATTACK.format("id"), f'"{ATTACK.format("title")}"\n{HOSTILE_GOLD} {ATTACK.format("text")}'),
    ("p2", "javascript:window.ran='link'\n</details></body><svg onload=\"window.ran='svg'\">"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[int]:
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


def in_page(browser: int, url: str, play, problems: bool = False) -> None:
    """Play in a new page at this address; whether the browser reports problems is checked at the end."""

    async def main() -> None:
        async with tab(browser) as page:
            await page.go(url)
            await play(page)
            assert bool(page.problems) == problems, page.problems

    asyncio.run(main())


async def answered(page: Tab, number: int = 1) -> None:
    await page.until(f"document.querySelectorAll('.answer').length === {number}")


def test_each_search_its_passages_and_those_with_the_answer_are_shown_and_can_be_stopped(tmp_path, browser):
    about = PageInfo("an invented world", "A remark.", (ExampleQuestion(QUESTION, "one fact"),), history=4)
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out"), about) as chat:

        async def play(page: Tab) -> None:
            await page.until("document.querySelector('#examples button') !== null")
            assert await page.texts("#what, #note") == ["searches an invented world", "A remark."]
            await page.click("#examples button")
            await answered(page)
            assert await page.texts(".query .said") == [QUESTION]
            assert await page.texts(".passage .title") == ["Mara Torval", "Tito Vesmer"]
            assert await page.texts(".found .title, .label") == ["Mara Torval", "contains these words"]
            assert await page.texts(".found mark") == [GOLD]
            assert await page.texts(".answer .text") == [GOLD]
            policy.latency_s = 30
            await page.type(QUESTION)
            await page.until("!document.getElementById('stop').hidden")
            await page.click("#stop")
            await answered(page, 2)
            assert (await page.texts(".answer .text"))[1] == "Stopped."
            policy.latency_s = 0
            await page.run(f"{BUTTONS}.find((one) => one.textContent === 'Retry').click()")
            await page.until("document.querySelectorAll('.answer:not(.none)').length === 2")
            prompt = policy.tokenizer.decode(policy.bodies[-1]["prompt"])
            assert f"Question: {QUESTION}\nAnswer: {GOLD}\n" in prompt  # the first, not the stopped one
            await page.click("#new")
            assert await page.texts(".turn") == []

        in_page(browser, chat.url, play)


def test_no_question_query_document_or_answer_runs_a_script(tmp_path, browser):
    with policy_of({HOSTILE: HOSTILE_GOLD}, passages=HOSTILE_PASSAGES) as policy:
        examples = (ExampleQuestion(HOSTILE, ATTACK.format("kind")),)
        about = PageInfo(ATTACK.format("what"), ATTACK.format("note"), examples)
        with chat_server(arguments(policy.url, tmp_path / "out"), about) as chat:

            async def play(page: Tab) -> None:
                await page.until("document.querySelector('#examples button') !== null")
                await page.click("#examples button")
                await answered(page)
                assert (await page.texts(".question"))[0] == HOSTILE
                assert ATTACK.format("title") in await page.texts(".passage .title")
                assert ATTACK.format("answer") in (await page.texts(".answer .text"))[0]
                assert (
                    await page.run("document.querySelectorAll('main img, main script, main svg').length") == 0
                )
                await asyncio.sleep(0.1)
                assert await page.run("typeof window.ran") == "undefined"

            in_page(browser, chat.url, play)


def test_should_markup_get_in_the_servers_policy_still_keeps_it_from_running(tmp_path, browser):
    ways = (
        f"document.body.innerHTML = {json.dumps(ATTACK.format('markup'))}",
        "const i = new Image(); i.setAttribute('onerror', 'window.ran = 1'); i.src = 'x'",
        "const s = document.createElement('script'); s.text = 'window.ran = 2'; document.body.append(s)",
        "const s = document.createElement('script'); s.src = 'data:,window.ran = 3'; document.body.append(s)",
        "window.ran = eval('4')",
    )
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out")) as chat:

        async def play(page: Tab) -> None:
            for way in ways:
                await page.run(f"(() => {{ try {{ {way} }} catch (error) {{}} }})()")
            await asyncio.sleep(0.2)
            assert await page.run("typeof window.ran") == "undefined"

        in_page(browser, chat.url, play, problems=True)


def test_the_page_asks_for_the_token_and_fits_a_phone(tmp_path, browser):
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out"), token="t0ken") as chat:

        async def play(page: Tab) -> None:
            await page.look(360, 640)
            await page.until("!document.getElementById('login').hidden")
            await page.run("document.getElementById('token').value = 't0ken'")
            await page.click("#login button")
            await page.until("document.getElementById('what').textContent !== ''")
            await page.type(QUESTION)
            await answered(page)
            assert await page.texts(".answer .text") == [GOLD]
            assert await page.run("document.documentElement.scrollWidth") <= 360

        in_page(browser, chat.url, play, problems=True)  # the first request, without the token


def test_an_answer_is_shown_as_right_wrong_or_ungrounded_and_parallel_queries_as_one_step(tmp_path, browser):
    right, wrong, invented = QUESTION, "Who painted it?", "Where is it?"
    golds = {right: (GOLD,), wrong: ("Tito Vesmer",)}
    about = PageInfo(model="grpo", step=18, index="people", golds=golds)
    answers = {right: GOLD, wrong: "Mara Torval", invented: "Atlantis"}
    with policy_of(answers, also=("Tito Vesmer",), rounds=2) as policy:
        with chat_server(arguments(policy.url, tmp_path / "out", history=0), about) as chat:

            async def play(page: Tab) -> None:
                await page.until("document.getElementById('what').textContent !== ''")
                assert await page.texts("#what") == ["grpo · step 18 · index people"]
                for number, question in enumerate(answers, 1):
                    await page.type(question)
                    await answered(page, number)
                assert await page.run("document.querySelectorAll('.step.search').length") == 6
                assert (await page.texts(".together"))[0] == "2 searches at once"
                assert (await page.texts(".folded summary"))[0] == "The same search as before"
                assert (await page.texts(".passage .first"))[0].startswith("The painter Mara Torval")
                known, wrong_one = await page.texts(".answer .verdict")  # of the third it is not known
                assert known.startswith("Right")
                assert wrong_one == "Wrong. The right answer is: Tito Vesmer"
                (ungrounded,) = await page.texts(".answer.ungrounded .by")
                assert "no passage contains these words" in ungrounded
                link = await page.run("import('./share.js').then((it) => it.questionLink('Who & why?'))")
                assert link == f"{chat.url}/#q=Who%20%26%20why%3F"

            in_page(browser, chat.url, play)


def test_the_picture_of_the_guide_is_taken_of_the_first_question_that_shows_it_all(tmp_path, browser):
    answers = {"Who painted it?": "Mara Torval", QUESTION: GOLD}
    about = PageInfo("some passages", golds={"Who painted it?": ("Tito Vesmer",), QUESTION: (GOLD,)})
    out = tmp_path / "chat.png"
    with policy_of(answers, also=("Tito Vesmer",)) as policy:
        with chat_server(arguments(policy.url, tmp_path / "out", history=0), about) as chat:
            asyncio.run(take_picture(browser, chat.url, answers, out))
            assert out.read_bytes().startswith(b"\x89PNG") and len(policy.bodies) == 4
            with pytest.raises(SystemExit, match="train a policy first"):
                asyncio.run(take_picture(browser, chat.url, ["Who painted it?"], out))


def test_a_link_fills_in_its_question_and_asks_nothing(tmp_path, browser):
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out")) as chat:

        async def play(page: Tab) -> None:
            await page.until("document.getElementById('question').value === 'Who & why?'")
            assert await page.texts(".turn") == [] and policy.bodies == []

        in_page(browser, f"{chat.url}/#q=Who%20%26%20why%3F", play)


# Answers every question at once, and notes the number of messages of each request.
ANSWERED_AT_ONCE = """
window.counts = [];
window.fetch = async (_, { body }) => {
  counts.push(JSON.parse(body).messages.length);
  const chunks = [{ choices: [{ delta: { content: "a" } }] }, { rag_r1: { event: "ended", seconds: 0 } }];
  return new Response(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\\n\\n`).join(""));
};
"""


def test_a_conversation_may_be_longer_than_a_request(tmp_path, browser):
    questions = MAX_MESSAGES // 2 + 2
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out")) as chat:

        async def play(page: Tab) -> None:
            await page.until("document.getElementById('what').textContent !== ''")
            await page.run(ANSWERED_AT_ONCE)
            for number in range(1, questions + 1):
                await page.type("Why?")
                await page.until(f"document.querySelectorAll('.answer').length === {number}")
            counts = await page.run("counts")
            assert counts[:2] == [1, 3] and len(counts) == questions and max(counts) < MAX_MESSAGES

        in_page(browser, chat.url, play)


def test_a_server_that_stops_is_not_said_to_be_full(tmp_path, browser):
    reply = json.dumps({"error": {"message": STOPPING.reason}})
    options = json.dumps({"status": STOPPING.status, "headers": {"Retry-After": str(RETRY_S)}})
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path / "out")) as chat:

        async def play(page: Tab) -> None:
            await page.until("document.getElementById('what').textContent !== ''")
            await page.run(f"window.fetch = async () => new Response({json.dumps(reply)}, {options})")
            await page.type("Why?")
            await answered(page)
            assert await page.texts(".answer .text") == [f"The server stops: ask again in {RETRY_S} s"]

        in_page(browser, chat.url, play)
