"""Connects BrowseComp-Plus with our retrieval server and our trajectories.

BrowseComp-Plus (arXiv 2508.06600, repository texttron/BrowseComp-Plus) evaluates search agents on 830 hard
questions over a fixed corpus of about 100,000 documents. It has two interfaces, and this module serves both:

    retriever   `RetrievalServerSearcher` has the methods of its `BaseSearcher`, over HTTP. Import it in the
                benchmark's `searcher/searchers/custom_searcher.py` as `CustomSearcher`; its agents and its
                servers then take `--searcher-type custom --retriever-url URL`.
    agent       `write_runs` turns trajectory records into the files that its
                `scripts_evaluation/evaluate_run.py` reads: one JSON object for each question.

    python -m examples.browsecomp_plus.run --records DIR --out runs/my-agent --model my-agent

The benchmark is not imported: the class has the methods of `BaseSearcher` without inheriting from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from rag_r1.agent import Trajectory
from rag_r1.agent.records import read_records, trajectory_of
from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.server_address import OTHER_JSON
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.client import RetrieverConfig, token_header

Value = TypeVar("Value")


class RetrievalServerSearcher:
    """A `BaseSearcher` (searcher/searchers/base.py, commit 97c637c) whose index is a retrieval server.

    Its token, if it requires one, is read from the environment variable `RETRIEVAL_TOKEN`.
    """

    @classmethod
    def parse_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add our arguments to the benchmark's parser."""
        parser.add_argument("--retriever-url", default="http://127.0.0.1:8000", help="address of the server")
        parser.add_argument("--retriever-index", help="name of an index of the server (default: the first)")
        parser.add_argument("--retriever-timeout", type=float, default=60.0, help="time limit in seconds")

    def __init__(self, args: argparse.Namespace):
        """Raise RunError if no retrieval server is ready at the address, and ValueError for an argument or a
        token that cannot be used."""
        config = RetrieverConfig(url=args.retriever_url, timeout_s=args.retriever_timeout)
        self._index = {"index": args.retriever_index} if args.retriever_index else {}
        self._client = bounded_http_client(config.timeout_s, token_header(), config.base)

        def read_backend(status: Any) -> str:
            return str(status.get("indexes", {}).get(args.retriever_index, status).get("backend", ""))

        try:
            self._backend = self._request("GET", "/ready", read_backend)
        except RunError:
            self._client.close()
            raise

    def search(self, query: str, k: int = 10) -> list[dict[str, Any]]:
        """Return at most `k` documents, best first, each as `{"docid", "score", "text"}`.

        Raises RunError if the server does not answer with documents.
        """

        def read_hits(answer: Any) -> list[dict[str, Any]]:
            [hits] = answer["result"]
            return [{**_document_of(hit["document"]), "score": hit["score"]} for hit in hits]

        body = {"queries": [query], "topk": k, "return_scores": True, **self._index}
        return self._request("POST", "/retrieve", read_hits, body)

    def get_document(self, docid: str) -> dict[str, Any] | None:
        """Return the whole document, `{"docid", "text"}`, or None if there is none with this id.

        Raises RunError if the server does not answer with documents.
        """

        def read_document(answer: Any) -> dict[str, Any] | None:
            [document] = answer["result"]
            return None if document is None else _document_of(document)

        return self._request("POST", "/documents", read_document, {"ids": [docid], **self._index})

    @property
    def search_type(self) -> str:
        """The kind of search of the server's index, e.g. `bm25` or `dense`."""
        return self._backend

    def search_description(self, k: int = 10) -> str:
        """Return the description of the search tool for the model."""
        return (
            f"Searches a collection of documents. Returns the {k} best, each with docid, score and snippet."
        )

    def get_document_description(self) -> str:
        """Return the description of the tool that opens a document, for the model."""
        return "Returns the whole document with the given docid."

    def _request(
        self, method: str, path: str, read: Callable[[Any], Value], body: dict[str, Any] | None = None
    ) -> Value:
        """Send a request and return what `read` takes from the JSON of the response.

        Raises RunError if there is no response, or if it has another status or shape.
        """
        address = f"{self._client.base_url}{path}"
        try:
            answer = self._client.request(method, path, json=body)
            if answer.status_code != 200:
                raise RunError(f"{address} answered {answer.status_code}: {answer.text[:300]}")
            return read(answer.json())
        except (LookupError, TypeError, AttributeError) as error:
            raise RunError(f"no retrieval server answers at {address}: {OTHER_JSON}") from error
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise RunError(f"no retrieval server answers at {address}: {error}") from error


def _document_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of the server in the benchmark's format."""
    return {"docid": document["id"], "text": document["contents"]}


def to_benchmark_run(trajectory: Trajectory, query_id: str, model: str = "") -> dict[str, Any]:
    """Convert a trajectory to the benchmark's format.

    `status` is `completed` if the agent gave an answer; the benchmark counts all others as wrong.
    `retrieved_docids` has the documents that were shown to the policy; the last element of `result` is the
    answer that is judged. The model's thoughts are copied as text and never interpreted.
    """
    steps: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    docids: dict[str, None] = {}
    for turn in trajectory.turns:
        steps.append(_step("reasoning", turn.text))
        for call in turn.calls:
            counts[call.tool] = counts.get(call.tool, 0) + 1
            documents = call.documents or []
            docids |= dict.fromkeys(document.id for document in documents if document.id)
            snippets = [{"docid": document.id, "snippet": document.contents} for document in documents]
            output = json.dumps(snippets, ensure_ascii=False)
            steps.append(_step("tool_call", output, call.tool, dict(call.arguments)))
    answered = trajectory.status == "answered" and trajectory.answer is not None
    if answered:
        steps.append(_step("output_text", f"Exact Answer: {trajectory.answer}"))
    return {
        "metadata": {"model": model, "protocol": trajectory.protocol},
        "query_id": query_id,
        "tool_call_counts": counts,
        "status": "completed" if answered else "incomplete",
        "retrieved_docids": list(docids),
        "result": steps,
    }


def _step(
    kind: str, output: str, tool: str | None = None, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a step in the benchmark's format; only a tool call has `tool` and `arguments`."""
    return {"type": kind, "tool_name": tool, "arguments": arguments, "output": output}


def query_id_of(record_id: str) -> str:
    """Return the question's id, `ID`, from a record's id, `source/split/ID` or `source/split/ID#sample`."""
    return record_id.rpartition("/")[2].partition("#")[0]


def write_runs(records: Iterable[dict[str, Any]], out: Path, model: str = "") -> int:
    """Write one file for each record into a folder, and return the number of files.

    The folder should have no runs yet: files of earlier runs are replaced only by those of the same number,
    and the benchmark counts all that it finds. Raises DataError for a line that is not a record, for a record
    without an id, and for a second record of a question, since the benchmark would count both.
    """
    out.mkdir(parents=True, exist_ok=True)
    query_ids: set[str] = set()
    for record in records:
        query_id = query_id_of(str(record.get("id", "")))
        if not query_id or query_id in query_ids:
            reason = "a second record of its question" if query_id else "it has no question's id"
            raise DataError(f"the record {record.get('id')!r}: {reason}: give --records with one for each")
        query_ids.add(query_id)
        run = to_benchmark_run(trajectory_of(record), query_id, model)
        text = json.dumps(run, ensure_ascii=False, indent=2)
        write_text(out / f"run_{len(query_ids):05d}.json", text, errors="replace")
    return len(query_ids)


class RunArguments(Arguments):
    """The records to convert, and the folder for the benchmark's files."""

    records: list[Path] = argument("folders or files of trajectory records", "DIR")
    out: Path = argument("folder for the benchmark's JSON files", "DIR")
    model: str = argument("name of the model, for the benchmark's summary", "NAME", default="")


@command_main(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Convert the records; returns 0, or 1 with the reason of a failure."""
    args = read_arguments(
        RunArguments,
        arguments,
        prog="python -m examples.browsecomp_plus.run",
        description="Turn trajectory records into the run files of BrowseComp-Plus.",
    )
    count = write_runs(read_records(*args.records), args.out, args.model)
    print(f"{args.out}: {count} runs; in the benchmark's folder, judge them with")
    print(f"  python scripts_evaluation/evaluate_run.py --input_dir {args.out.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
