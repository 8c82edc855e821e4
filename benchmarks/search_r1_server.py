"""Starts Search-R1's own retrieval server from a checkout, on an index folder of this project.

    git clone https://github.com/PeterGriffinJin/Search-R1
    python benchmarks/search_r1_server.py --checkout Search-R1 --index indexes/wiki --port 8001
    python benchmarks/retrieval_server.py --url http://127.0.0.1:8000 --url http://127.0.0.1:8001

This project contains none of Search-R1's code. The file `search_r1/search/retrieval_server.py` runs
unmodified, with the FAISS file of the index, its passages written as JSONL, and its encoder. Only the
following is changed around it:

- the port, which is hard-coded, and the address, which is 127.0.0.1 instead of all interfaces;
- the progress bar for every request is turned off;
- without a GPU, or with `--device cpu`, its `.cuda()` and `.half()` do nothing, so that it computes in
  float32 like our server.

It knows the prefixes of E5 and BGE, and uses mean pooling for every model. With a BGE index its results
therefore differ from ours; with E5 and MiniLM they are the same. An index whose queries have another prefix
is refused. It needs the package `datasets`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from rag_r1.options.command_exit import CommandError, command_main

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

_SERVER = Path("search_r1") / "search" / "retrieval_server.py"
#: Prefix of queries -> the name by which Search-R1's server chooses it.
_RETRIEVER_NAMES = {
    "": "dense",
    "query: ": "e5",
    "Represent this sentence for searching relevant passages: ": "bge",
}


def write_corpus(index: Path, path: Path) -> None:
    """Write the passages of an index folder as the JSONL that Search-R1's server reads."""
    from retrieval_server.folder.manifest import PASSAGES
    from retrieval_server.folder.passages import PassageStore

    with path.open("w", encoding="utf-8") as stream:
        for passage in PassageStore(index / PASSAGES):
            stream.write(json.dumps({"id": passage.id, "contents": passage.contents}) + "\n")


def retriever_name(query_prefix: str) -> str:
    """Return the name by which Search-R1's server chooses the prefix of queries.

    Raises UserError for a prefix that the server does not know.
    """
    from retrieval_server.errors import UserError

    if query_prefix not in _RETRIEVER_NAMES:
        raise UserError(
            f"Search-R1's server knows no prefix {query_prefix!r}, so other queries would be measured. Give "
            "an index of E5, of BGE, or of an encoder without a prefix."
        )
    return _RETRIEVER_NAMES[query_prefix]


def stay_on_cpu() -> None:
    """Make `.cuda()` and `.half()` of modules and `.cuda()` of tensors do nothing."""
    import torch

    def unchanged(self: Any, *_: Any, **__: Any) -> Any:
        return self

    torch.nn.Module.cuda = torch.nn.Module.half = torch.Tensor.cuda = unchanged  # type: ignore[method-assign]


def run(server: Path, arguments: list[str], port: int, device: str | None) -> None:
    """Run the server's file as a script with these arguments, on this port, until it is stopped.

    It runs on the CPU if `device` is `cpu` or there is no GPU.
    """
    import torch
    import uvicorn

    if device == "cpu" or not torch.cuda.is_available():
        stay_on_cpu()
    serve = uvicorn.run

    def on_our_port(app: Any, **_: Any) -> None:
        print(f"serving on http://127.0.0.1:{port}", flush=True)
        serve(app, host="127.0.0.1", port=port, log_level="warning")

    uvicorn.run = on_our_port
    sys.argv = [str(server), *arguments]
    runpy.run_path(str(server), run_name="__main__")


@command_main()
def main(argv: list[str] | None = None) -> int:
    """Serve an index with Search-R1's server until a signal arrives; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkout",
        type=Path,
        required=True,
        metavar="PATH",
        help="a clone of Search-R1, or its server's file",
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a dense index folder")
    parser.add_argument("--port", type=int, default=8001, help="port on 127.0.0.1 (default %(default)s)")
    parser.add_argument("--topk", type=int, default=3, help="for requests without topk (default %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if torch sees one")
    args = parser.parse_args(argv)
    os.environ["TQDM_DISABLE"] = "1"  # tqdm reads this when it is imported

    from retrieval_server.encode.model_folder import resolve_model
    from retrieval_server.errors import UserError
    from retrieval_server.folder.manifest import FAISS_INDEX, read_manifest

    server = args.checkout.resolve()
    if not server.is_file():
        server /= _SERVER
    try:
        if args.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise UserError("--device cuda: torch sees no GPU; leave it out, or give --device cpu")
        manifest = read_manifest(args.index)
        if manifest.dense is None:
            raise UserError(f"{args.index} is a {manifest.backend} index; give a dense one")
        if manifest.dense.rescoring is not None:
            raise UserError(
                f"{args.index} is a compressed index ({manifest.dense.preset}): Search-R1's server does not "
                "score candidates from stored rows, so it would find other passages. Give an exact index, or "
                "one made with --factory."
            )
        if not server.is_file():
            raise UserError(
                f"--checkout {args.checkout}: no {_SERVER} in it. Clone https://github.com/PeterGriffinJin/Search-R1"
            )
        name = retriever_name(manifest.dense.encoder.query_prefix)
        _, model = resolve_model(manifest.dense.encoder.name)
    except UserError as error:
        raise CommandError(error, 2) from error
    # uvicorn raises SIGTERM again after it has ended; the temporary folder is still removed.
    with tempfile.TemporaryDirectory(prefix="search-r1-") as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_corpus(args.index, corpus)
        arguments = {
            "--index_path": args.index / FAISS_INDEX,
            "--corpus_path": corpus,
            "--topk": args.topk,
            "--retriever_name": name,
            "--retriever_model": model,
        }
        run(server, [str(part) for pair in arguments.items() for part in pair], args.port, args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
