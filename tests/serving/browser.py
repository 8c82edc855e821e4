"""Headless Chromium through its DevTools protocol, over aiohttp: no driver is needed."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # for root, as in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)

#: Of keys that are no characters.
_KEY_CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "ArrowDown": 40}


class Tab:
    """A page. `problems` are what the browser reported: exceptions, violations of the page's policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket, self._next = socket, 0
        self._answers: dict[int, asyncio.Future[dict]] = {}
        self.problems: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            reply = json.loads(message.data)
            if "id" in reply:
                self._answers.pop(reply["id"]).set_result(reply)
            elif reply["method"] == "Log.entryAdded" and reply["params"]["entry"]["level"] == "error":
                self.problems.append(reply["params"]["entry"]["text"])
            elif reply["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(reply["params"]["exceptionDetails"]))

    async def send(self, method: str, **params: Any) -> dict:
        """A command and its result."""
        self._next += 1
        answer = self._answers[self._next] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._next, "method": method, "params": params})
        reply = await asyncio.wait_for(answer, 30)
        assert "error" not in reply, reply
        return reply["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        reply = await self.send(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def until(self, script: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not await self.run(script):
            assert asyncio.get_running_loop().time() < deadline, f"never true: {script}"
            await asyncio.sleep(0.05)

    async def go(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def look(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        """The size of the window, and the colours that its user prefers."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """A PNG of the window, for a page: few colours make a small file."""
        from PIL import Image

        shot = base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])
        with Image.open(BytesIO(shot)) as image:
            few = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
        few.save(path, optimize=True)

    async def type(self, text: str) -> None:
        """Type into the field for the question, and ask."""
        await self.run("document.getElementById('question').focus()")
        await self.send("Input.insertText", text=text)
        await self.press("Enter")

    async def press(self, key: str) -> None:
        """Press a key: a character, or one of _KEY_CODES."""
        code = _KEY_CODES.get(key, 0)
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a selector."""
        return await self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
        )

    async def click(self, selector: str) -> None:
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")


@contextmanager
def chromium(profile: Path) -> Iterator[int]:
    """A browser whose files are in the folder `profile`; yields the port of its protocol."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        note = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (note.exists() and "\n" in note.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        yield int(note.read_text().splitlines()[0])
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def tab(port: int) -> AsyncIterator[Tab]:
    """A new page of the browser."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
            page = await answer.json()
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            opened = Tab(socket)
            for domain in ("Page", "Runtime", "Log"):
                await opened.send(f"{domain}.enable")
            yield opened
            await opened.send("Page.close")
            opened.reading.cancel()
