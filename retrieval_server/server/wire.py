"""The wire format: request and response bodies.

- `/retrieve` is the format of Search-R1, RAG-R1, SkyRL and ASearcher. As in their servers, `return_scores` is
  false by default, and the result then contains bare documents. A single `query` instead of `queries` is
  treated as a list of one, for SkyRL's clients, which read `result`, and for rLLM's. These send `query` and
  `top_k`, and read a flat list with scores under `results`, with `id` and `content` beside each `document`.
  So the answer to a `query` has both keys.
- `/queries` is the format of R1-Searcher. An answer is a line with id and contents, separated by a tab,
  because the clients strip a leading number. They would show any other id to the model, so a corpus for them
  needs numbers as ids.
- `/access` is ASearcher's format for whole pages by their address.
- `/documents` returns documents by their ids, for agents that open what a search found (BrowseComp-Plus).

If a server has several indexes, a request names one as `index` or in the path: `/indexes/{name}/retrieve`.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from retrieval_server.determinism import Determinism

DEFAULT_INDEX = "default"  # the name of an index for which the operator chose none
MAX_URLS = 64  # pages in one answer; a page can be long
MAX_IDS = 64  # documents in one answer
MAX_ID_CHARS = 1024
_MAX_CHECKED_KEYS = 20  # unknown keys of a body that are compared with the known ones
_MAX_CHECKED_CHARS = 20  # length from which on an unknown key is not compared
MAX_PATH = 1024  # characters of a folder's path in a request to reload
_PASSAGE = {"id": "kafka-1", "contents": '"The Trial"\nThe Trial is a novel by Franz Kafka.'}
_PAGE = {"url": "https://en.wikipedia.org/wiki/Ulm", "contents": "Ulm is a city."}
_WIKI = {"index_version": 1, "backend": "bm25", "passages": 9756, "corpus_sha256": "5d41...c592"}
_WIKI |= {"guarantee": "bits"}
_LIMITS = {"max_queue": 4096, "deadline_s": 60.0, "max_queries": 2048, "max_topk": 100}
_QUESTIONS = ["Who wrote the novel The Trial?", "In which river's valley lies Ulm?"]


def example(body: dict, **config: Any) -> ConfigDict:
    """Return the configuration of a body's model with an example for the API page."""
    return ConfigDict(json_schema_extra={"examples": [body]}, **config)


def _encodable(query: str) -> str:
    """Return the query. Raises ValueError for half a surrogate pair, on which tokenizers fail.

    JSON can express one ("\\ud800"), but it is not a character.
    """
    try:
        query.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair") from None
    return query


Query = Annotated[str, AfterValidator(_encodable)]
TopK = Annotated[StrictInt, Field(ge=1)]
IndexName = Annotated[str | None, Field(description="One of the server's indexes; its default if absent.")]


class _SearchRequest(BaseModel):
    """A body with queries. Unknown keys are ignored, since the clients of several projects send further keys.

    An unknown key that resembles a key of this body is refused: the typing error would change the answer.
    """

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelled(cls, body: Any) -> Any:
        unknown_keys = body.keys() - cls.model_fields.keys() if isinstance(body, dict) else ()
        for key in islice(unknown_keys, _MAX_CHECKED_KEYS):
            if len(key) >= _MAX_CHECKED_CHARS:
                continue
            if similar := get_close_matches(key, cls.model_fields.keys() - body.keys(), n=1, cutoff=0.75):
                names = {"key": key.encode(errors="replace").decode(), "near": similar[0]}  # no surrogates
                raise PydanticCustomError("key", "{key}: there is no such key; did you mean {near}?", names)
        return body


class RetrieveRequest(_SearchRequest):
    """Body of `POST /retrieve`."""

    model_config = example({"queries": _QUESTIONS, "topk": 2, "return_scores": True})

    queries: list[Query] | None = Field(None, description="The queries; an empty list gives an empty result.")
    query: Query | None = Field(None, description="One query, in place of `queries`.")
    topk: TopK | None = Field(None, description="Passages for each query; the server's --topk if absent.")
    top_k: TopK | None = Field(None, description="Another name of `topk`.")
    return_scores: StrictBool = Field(False, description="Whether each document comes with its score.")
    index: IndexName = None

    @model_validator(mode="after")
    def _has_one_spelling(self) -> RetrieveRequest:
        if (self.queries is None) == (self.query is None):
            raise PydanticCustomError("queries", "give either queries (a list) or query (one string)")
        if self.topk is not None and self.top_k is not None and self.topk != self.top_k:
            raise PydanticCustomError("topk", "topk and top_k are one thing and differ: give one")
        return self

    def query_list(self) -> list[str]:
        """Return the queries, whether they were sent as a list or as one string."""
        return [self.query] if self.queries is None else self.queries


class Document(BaseModel):
    """A passage of the corpus, with its id in the corpus."""

    id: str
    contents: str
    url: str | None = Field(None, description="The passage's address; absent where the corpus has none.")


class ScoredDocument(BaseModel):
    """A passage with its score. Larger is better; scores are comparable within one query only."""

    document: Document
    score: float


class FlatDocument(ScoredDocument):
    """A scored passage whose id and contents are repeated under the names that rLLM's clients read."""

    id: str
    content: str


class RetrieveResponse(BaseModel):
    """`result[i]` answers `queries[i]`, best first. The other two keys exist only for a single `query`."""

    model_config = example({"result": [[{"document": _PASSAGE, "score": 11.3}], []]})

    result: list[list[ScoredDocument]] | list[list[Document]]
    query: str | None = None
    results: list[FlatDocument] | None = Field(None, description="The same documents, not nested, scored.")


class QueriesRequest(_SearchRequest):
    """Body of `POST /queries`."""

    model_config = example({"queries": _QUESTIONS, "k": 2})

    queries: list[Query]
    k: TopK | None = Field(None, description="Passages for each query; the server's --topk if absent.")
    index: IndexName = None


class QueriesResponse(BaseModel):
    """`answers[i]` contains the passages for `queries[i]`, each as `id<TAB>contents`."""

    model_config = example({"queries": _QUESTIONS, "answers": [["kafka-1\t" + _PASSAGE["contents"]], []]})

    queries: list[str]
    answers: list[list[str]]


class AccessRequest(BaseModel):
    """Body of `POST /access`."""

    model_config = example({"urls": [_PAGE["url"]]})

    urls: list[Query] = Field(max_length=MAX_URLS)


class Page(BaseModel):
    """A whole page."""

    url: str
    contents: str


class AccessResponse(BaseModel):
    """`result[i]` is the page at `urls[i]`, or null if there is none."""

    model_config = example({"result": [_PAGE]})

    result: list[Page | None]


class DocumentsRequest(BaseModel):
    """Body of `POST /documents`."""

    model_config = example({"ids": ["kafka-1", "no such id"]})

    ids: list[Annotated[Query, Field(max_length=MAX_ID_CHARS)]] = Field(max_length=MAX_IDS)
    index: IndexName = None


class DocumentsResponse(BaseModel):
    """`result[i]` is the document whose id is `ids[i]`, or null if there is none."""

    model_config = example({"result": [_PASSAGE, None]})

    result: list[Document | None]


class ServerLimits(BaseModel):
    """The limits of the server, by which clients can choose a time-out and a number of parallel requests."""

    max_queue: int = Field(description="Queries of one index, accepted and not yet answered; more get 503.")
    deadline_s: float = Field(description="Seconds after which a request without an answer gets 504.")
    max_queries: int = Field(description="Queries in one request; more get 413.")
    max_topk: int = Field(description="Largest topk of a request; more gets 413.")


class Health(BaseModel):
    """The process is alive."""

    model_config = example({"status": "ok", "limits": _LIMITS})

    status: str = "ok"
    limits: ServerLimits


class IndexStatus(BaseModel):
    """The description of an index. `index_version` is 1 at the start and one more after each reload."""

    index_version: int
    backend: str
    passages: int | None = Field(None, description="Null if documents come from the web.")
    corpus_sha256: str | None = None
    encoder: str | None = None
    encoder_sha256: str | None = Field(
        None, description="Hash of the encoder's files, which changes when the encoder is trained again."
    )
    separator: str | None = Field(None, description="Joins the parts of a query made of several texts.")
    max_length: int | None = Field(
        None, description="Tokens of a query that the encoder reads, including prefix and special tokens."
    )
    query_prefix: str | None = Field(None, description="Added to a query by the server, not by clients.")
    query_mode: str | None = Field(
        None,
        description="What clients add to a query, as in the encoder's training: agentic (the question), "
        "history, reasoning or plain. Null if the training did not record it.",
    )
    query_dtype: str | None = Field(
        None, description="The number format in which this server encodes queries."
    )
    passage_dtype: str | None = Field(
        None, description="int8 if the passages were encoded in 8 bits; null for floating point."
    )
    guarantee: Determinism | None = Field(
        None,
        description="What holds for an answer at every load. bits: the same ids and the same bits of every "
        "score. order: scores within 1e-6, and the same ids except where scores are that close. none: "
        "neither, as the model computes in 16 or 8 bits. Null if documents come from the web.",
    )
    paged_in: float | None = Field(
        None,
        description="The share, 0 to 1, of a mapped index that has been read into memory in the background. "
        "Meanwhile searches are slower. Null if the index is not mapped, does not fit into memory, or is "
        "searched on Ray, where each shard reads its own part.",
    )


class Ready(IndexStatus):
    """Every index is loaded. The default index is described here, and each one under `indexes`."""

    model_config = example(
        {"status": "ready", "topk": 3, "index": "wiki", "indexes": {"wiki": _WIKI}} | _WIKI
    )

    status: str = "ready"
    topk: int = Field(description="Passages a query where a request names no number.")
    index: str = Field(description="The index of requests that name none.")
    indexes: dict[str, IndexStatus]


class ReloadRequest(BaseModel):
    """Body of `POST /reload`."""

    model_config = example({"index": "wiki", "path": "wiki-step-200"}, extra="forbid")

    index: IndexName = None
    path: str | None = Field(
        None, max_length=MAX_PATH, description="The new index folder; the present one again if absent."
    )
    encoder: str | None = Field(
        None,
        max_length=MAX_PATH,
        description="Where its encoder is; by default where the index says; for the same path, as before.",
    )


class ReloadResponse(IndexStatus):
    """The index that is served from now on."""

    model_config = example({"index": "wiki"} | _WIKI | {"index_version": 2})

    index: str


class Error(BaseModel):
    """The body of every response whose status is not 200."""

    error: str = Field(description="A fixed word to branch on.", examples=["bad_input"])
    reason: str = Field(description="A sentence for people.", examples=["queries[1] must be a string, not 3"])
