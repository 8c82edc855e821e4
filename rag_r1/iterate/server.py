"""Controls the retrieval server of a loop, so that it serves the index of the current step.

The loop's files do not tell which index a server serves, so it is always verified. Before the first step that
searches, unless the server is started for it, and before each step with another index, the folder of the
index is sent with `POST /reload`. The server answers with the old index until the new one is loaded, and
keeps the old one if loading fails, for example because the encoder does not match the index. It may also be
restarted or reloaded by others during a training of hours. So before every step that searches, `/ready` is
compared with the manifest in that folder, and a difference is an error.

Either the server runs already at `server.url`, or it is started here and runs as long as the loop. It must be
allowed to open the folder OUT. A server that is started here may open the folder that contains both OUT and
the first index. Another one may open the folder of its option `--reload-root`, by default the one that
contains its first index.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from rag_r1.io.bounded_http import SHORT_ANSWER_VALUES, bounded_http_client, is_web_page
from rag_r1.io.bounded_json import read_json, read_json_file
from rag_r1.io.errors import reason_of
from rag_r1.iterate.plan import ServerSpec
from rag_r1.options.server_address import FIRST_ANSWER_S, other_answer_fault, search_fault, web_page_fault
from rag_r1.rollouts.provenance_facts import describe_server
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import one_line_text
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.tools.retrieval.options import TOKEN_VARIABLE, token_header
from rag_r1.tools.retrieval.query_format import ready_address

#: The file in OUT for the output of a server that is started here.
LOG = "server.log"
#: Placeholder for the server's address in printed commands, as long as no server has been started.
UNKNOWN_URL = "http://SERVER_OF_THE_LOOP"  # the arguments of commands must take it
#: Most seconds for loading an index. Loading many gigabytes takes minutes.
_LOADING_S = 3600.0
#: Seconds before a refused reload is requested again.
_RETRY_S = 1.0
#: Facts about an encoder that `/ready` and the manifest of an index state under the same names.
_ENCODER_KEYS = ("separator", "max_length", "query_prefix")
#: Facts about an index that both state.
_COMPARED_KEYS = ("passages", "corpus_sha256", "encoder", "encoder_sha256", *_ENCODER_KEYS)


class LoopServer(ExitStack):
    """The retrieval server of the loop in the folder `out`. A server that is started here is stopped at the
    end of the context. `url` is the address, or "" until it is started."""

    def __init__(self, server: ServerSpec, out: Path):
        super().__init__()
        self.server, self.out = server, out
        self.url = (server.url or "").rstrip("/")
        self._served_index: Path | None = None

    def check(self) -> None:
        """Raise RunError unless a retrieval server answers at its address, within seconds; it may be loading
        its index."""
        answer = self._request("GET", ready_address(self.url)[0])
        self._check_token(answer)
        if is_web_page(answer.headers):
            raise RunError(web_page_fault("retrieval server", self.url, "server.url"))
        try:
            is_ready = "status" in read_json(answer.content, SHORT_ANSWER_VALUES)
        except (ValueError, RecursionError, TypeError):
            is_ready = False
        if answer.status_code != 503 and not (answer.status_code == 200 and is_ready):
            found = f"HTTP {answer.status_code} to GET /ready and {one_line_text(answer.text[:200])!r}"
            raise RunError(other_answer_fault("retrieval server", self.url, found, "server.url"))

    def serve(self, index: Path) -> str:
        """Make the server serve the index in this folder, and return its address. Raises RunError if it does
        not."""
        if not self.url:
            self._start(index)
        elif self._served_index != index:
            self._request_reload(index)
        self._check_served(index)
        self._served_index = index
        return self.url

    def index_facts(self) -> dict[str, Any]:
        """Return the facts `_COMPARED_KEYS` about the served index, None for one that the server does not
        state. Raises RunError if the server does not answer or is not ready."""
        is_named = ready_address(self.url)[1] is not None
        ready = self._named_index_facts() if is_named else describe_server(self.url)["ready"]
        if ready is None:
            raise RunError(f"the server at {self.url} is not ready: see its log, or correct server.url")
        return {name: ready.get(name) for name in _COMPARED_KEYS}

    def path_on_server(self, folder: Path) -> str:
        """Return the path that a folder of this machine has on the server's machine. Of several entries of
        `server.paths` that contain it, the first one counts."""
        for local, remote in self.server.paths.items():
            if folder.is_relative_to(Path(local).resolve()):
                return str(Path(remote) / folder.relative_to(Path(local).resolve()))
        return str(folder)

    def _named_index_facts(self) -> dict[str, Any] | None:
        """Return the part of `/ready` about the index that the address names; None if the server is not
        ready, has no such index or answers with something else. Raises RunError if it does not answer."""
        address, name = ready_address(self.url)
        answer = self._request("GET", address)
        try:
            facts = read_json(answer.content, SHORT_ANSWER_VALUES)["indexes"][name]
        except (ValueError, LookupError, TypeError):
            return None
        return facts if answer.status_code == 200 and isinstance(facts, dict) else None

    def _start(self, index: Path) -> None:
        """Start a server with this index on this machine. Raises RunError if it does not start."""
        log = self.out / LOG
        root = os.path.commonpath([index.resolve().parent, self.out])
        options = ("--reload-root", root, *self.server.options)
        self.url = self.enter_context(retrieval_process(index, log, *options, wait_s=_LOADING_S))

    def _request_reload(self, index: Path) -> None:
        """Make the running server load an index. Raises RunError if it refuses or hangs."""
        self.check()  # loading may take long, and answering may not
        address, name = ready_address(self.url)
        body = {"path": self.path_on_server(index), **({"index": name} if name else {})}
        encoder = manifest_facts(index)["encoder"]
        if encoder and (remote := self.path_on_server(Path(encoder))) != encoder:
            body["encoder"] = remote
        deadline = time.monotonic() + _LOADING_S
        while True:
            answer = self._request("POST", f"{address.removesuffix('/ready')}/reload", body)
            # 409: another reload is in progress, perhaps one requested by an earlier invocation.
            if answer.status_code != 409 or time.monotonic() > deadline:
                break
            time.sleep(_RETRY_S)
        self._check_token(answer)
        if answer.status_code != 200:
            raise RunError(
                f"the server at {self.url} does not load {index} (HTTP {answer.status_code}): "
                f"{one_line_text(answer.text)}. See its log; its --reload-root must contain that folder, "
                "under its path on that machine (server.paths)"
            )

    def _check_token(self, answer: httpx.Response) -> None:
        """Raise RunError if the server's answer says that the token is missing or wrong."""
        if answer.status_code == 401:
            fault = "does not accept the token" if token_header() else "requires a token"
            raise RunError(f"{self.url} {fault}: set the variable {TOKEN_VARIABLE} to that of the server")

    def _check_served(self, index: Path) -> None:
        """Raise RunError unless the server serves this index."""
        served = self.index_facts()
        expected = manifest_facts(index)
        faults = [
            f"{name} is {served[name]!r}, and {expected[name]!r} in {index / 'manifest.json'}"
            for name in _COMPARED_KEYS
            if served[name] != expected[name]
        ]
        if faults:
            raise RunError(
                f"the server at {self.url} does not serve {index}: {'; '.join(faults)}. Make sure that its "
                "machine has the same folder there (server.paths), and that nobody else reloads it"
            )

    def _request(self, method: str, address: str, body: Any = None) -> httpx.Response:
        """Send a request, and return the server's response. Only a POST, which loads an index, may take long.
        Raises RunError without a response."""
        timeout_s = _LOADING_S if method == "POST" else FIRST_ANSWER_S
        try:
            with bounded_http_client(timeout_s, token_header()) as client:
                return client.request(method, address, json=body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise RunError(search_fault(self.url, reason, "server.url")) from error


def manifest_facts(index: Path) -> dict[str, Any]:
    """Return the facts `_COMPARED_KEYS` in an index's manifest, under the names that `/ready` gives them.
    Raises RunError if the manifest cannot be read."""
    path = index / "manifest.json"
    try:
        manifest = read_json_file(path)
        encoder = (manifest.get("dense") or {}).get("encoder") or {}
        return {
            "passages": manifest["count"],
            "corpus_sha256": manifest["corpus"]["sha256"],
            "encoder": encoder.get("name"),
            "encoder_sha256": encoder.get("sha256"),
            **{key: encoder.get(key) for key in _ENCODER_KEYS},
        }
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)
        raise RunError(f"{path} cannot be read ({reason}): give the folder of a finished index") from error
