"""Defines the arguments of `rag-r1 corpus check`, and the retrieval servers that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from rag_r1.corpus.repair.repaired_corpus import REPAIRED
from rag_r1.data.files.bad_rows import HELP
from rag_r1.options.command_line import Arguments, Positive, argument
from rag_r1.options.server_address import Address
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.tools.retrieval.client import RetrieverConfig
from rag_r1.tools.retrieval.wire import WIRES

#: The servers that a check can ask.
ServerName = Literal["retriever", "bm25"]
#: How supporting ids of the data are used: the values of --ids.
IdsMode = Literal["auto", "trust", "ignore"]


class NamedServer(NamedTuple):
    """A retrieval server whose address is among the arguments."""

    #: The server's name in the report.
    name: ServerName
    #: The flag with the address.
    flag: str
    config: RetrieverConfig
    #: The file of the server's results.
    results_file: Path


class CheckArguments(Arguments):
    """The arguments of `rag-r1 corpus check`."""

    questions: list[Path] = argument(
        "questions: veRL parquet, or a data set's own file (JSON, JSON lines, CSV, TSV, parquet)",
        ("FILE", ...),
        old="data",
    )
    corpus: list[Path] = argument(
        "the corpus: .jsonl, .tsv (each plain or .gz), .parquet, a folder of these, or an index folder",
        ("PATH", ...),
    )
    out: Path = argument("folder for the report, and for the results of a run that is killed", "DIR")
    retriever_url: Address | None = argument("retrieval server of this corpus", "URL", default=None)
    bm25_url: Address | None = argument("retrieval server of its BM25 index", "URL", default=None)
    topk: Positive = argument("passages of a search in which a gold answer is looked for", default=20)
    wire: Literal[tuple(WIRES)] = argument("wire format of the servers", default="retrieve")
    ids: IdsMode = argument(
        "supporting ids of the data; auto: ignore those of a source if none of them is in the corpus",
        default="auto",
    )
    redirects: Path | None = argument(
        'redirects of the corpus\'s Wikipedia: .tsv of from<TAB>to, or .jsonl of {"from", "to"}',
        "FILE",
        default=None,
    )
    supply: list[Path] = argument(
        f"passages for a repaired corpus, DIR/{REPAIRED}; formats as for --corpus, ids may be absent",
        ("FILE", ...),
        default=[],
    )
    skip_bad_rows: bool = argument(HELP, default=False)
    no_progress: bool = argument("show no progress bars", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    def servers(self) -> list[NamedServer]:
        """Return the servers whose addresses are given."""
        servers = []
        urls: dict[ServerName, Address | None] = {"retriever": self.retriever_url, "bm25": self.bm25_url}
        for name, url in urls.items():
            if url:
                config = RetrieverConfig(url=url, topk=self.topk, wire=self.wire, cache_size=0)
                servers.append(NamedServer(name, f"--{name}-url", config, self.out / f"{name}.jsonl"))
        return servers
