"""A retrieval server that encodes and searches each request on its own: the usual design, for comparison.

    python benchmarks/one_by_one_server.py --index indexes/wiki --port 8001

It serves the same index folder, encoder and passages as retrieval_server/start_retrieval.py through the same
``POST /retrieve``, but works like Search-R1's server: each request runs in a thread of the web framework's
pool, which encodes its queries, searches FAISS, reads the documents and answers. There is no queue, no
batching across requests and no cache. ``--our-faiss-settings`` sets our server's FAISS threshold, to separate
its effect from that of batching; without it FAISS has its defaults.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from retrieval_server.server.wire import RetrieveRequest  # noqa: E402


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a dense index folder")
    parser.add_argument("--port", type=int, default=8001, help="port on 127.0.0.1 (default %(default)s)")
    parser.add_argument("--device", help="device of the encoder (default: a GPU if torch sees one)")
    parser.add_argument("--our-faiss-settings", action="store_true", help="set FAISS as in our server")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    import faiss

    threshold = faiss.cvar.distance_compute_blas_threshold  # the default, before our modules set it

    import uvicorn
    from fastapi import FastAPI

    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.folder.manifest import FAISS_INDEX, PASSAGES, read_manifest
    from retrieval_server.folder.passages import PassageStore

    manifest = read_manifest(args.index)
    if manifest.dense is None:
        print(f"error: {args.index} is a {manifest.backend} index; give a dense one", file=sys.stderr)
        return 2
    if manifest.dense.rescoring is not None:
        print(
            f"error: {args.index} is a compressed index ({manifest.dense.preset}): this server does not "
            "score candidates from stored rows, so it would find other passages. Give an exact index, or one "
            "made with --factory.",
            file=sys.stderr,
        )
        return 2
    encoder = Encoder.open(manifest.dense.encoder, device=args.device)
    index = faiss.read_index(str(args.index / FAISS_INDEX))
    passages = PassageStore(args.index / PASSAGES)
    from retrieval_server.search import faiss_search  # noqa: F401  (sets the threshold when it is imported)

    if not args.our_faiss_settings:
        faiss.cvar.distance_compute_blas_threshold = threshold

    app = FastAPI()

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/retrieve")
    def retrieve(request: RetrieveRequest) -> dict[str, list]:
        texts = [encoder.section.query_prefix + query for query in request.asked()]
        scores, rows = index.search(encoder.encode_together(texts), request.topk or 3)
        return {
            "result": [
                [
                    {"document": {"id": passages[row].id, "contents": passages[row].contents}, "score": score}
                    for row, score in zip(*pair, strict=True)
                ]
                for pair in zip(rows.tolist(), scores.tolist(), strict=True)
            ]
        }

    print(f"serving on http://127.0.0.1:{args.port}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
