"""Compares ways to compute an encoder on a CPU: those that the server offers, and alternatives.

    pip install "rag-r1[openvino]" onnxruntime onnx onnxscript onnx-ir
    python benchmarks/encoder_alternatives.py --questions questions.jsonl --corpus corpus.jsonl.gz

Questions are JSONL with {"question"} per line. Each way computes only the transformer, without tokenizer and
pooling, from the same token ids, padded or cut to equal lengths. The table has:

    speed      torch's processor time in float32 divided by that of the way, for several batches; the median
               over rounds in which all ways take turns
    cosine     of a question's mean state and that of torch
    moved      how far the normalised mean state of a question moves when seven others are in its batch; this
               reveals ways that scale a whole batch, such as dynamic quantisation

A way is left out, with a message, if its library is not installed or the processor lacks its data type.
"""

from __future__ import annotations

import copy
import gzip
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from rag_r1.runs.markdown import table  # noqa: E402
from retrieval_server.command_line import parse  # noqa: E402
from retrieval_server.encode.cpu_settings import set_mkl_reproducible  # noqa: E402
from retrieval_server.options import AtLeastOne, Flag, Options  # noqa: E402

#: Token ids and masks of a batch: name -> tensor (texts, tokens).
Features = dict[str, Any]
#: Computes the states of the last layer, a tensor (texts, tokens, width).
Way = Callable[[Features], Any]
#: The way with which all others are compared.
_REFERENCE = "torch float32"
#: Lengths to which texts are padded or cut.
_QUESTION_TOKENS, _PASSAGE_TOKENS = 24, 128
_SMALL_BATCH = 8
#: Batch -> how often it is computed in a round.
_REPEATS = {"one question": 8, "8 questions": 4, "64 questions": 1, "8 passages": 1}


class Command(Options):
    """The options of this script."""

    questions: Annotated[Path, Flag("JSONL", metavar="FILE")]
    corpus: Annotated[Path, Flag(".jsonl.gz with id and contents", metavar="FILE")]
    encoder: Annotated[str, Flag("a model folder, or minilm", metavar="NAME_OR_PATH")] = "minilm"
    threads: Annotated[AtLeastOne, Flag("threads of the encoder")] = 1
    rounds: Annotated[AtLeastOne, Flag("rounds in which all ways take turns")] = 5


def torch_ways(model: Any) -> dict[str, Way]:
    """Return the ways of torch: float32, and 8 bits with a scale for the whole batch or for each token."""
    import torch

    class EachToken(torch.nn.Module):
        """A linear layer in 8 bits, with a scale for each output of the weight and for each token's input."""

        def __init__(self, linear: torch.nn.Linear):
            super().__init__()
            scale = linear.weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            self.weight = (linear.weight / scale).round().to(torch.int8).T.contiguous()
            self.scale, self.bias = scale.T, linear.bias

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            rows = inputs.flatten(0, -2)
            scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            products = torch._int_mm((rows / scale).round().to(torch.int8), self.weight)
            return (products * scale * self.scale + self.bias).unflatten(0, inputs.shape[:-1])

    def replace(module: torch.nn.Module) -> torch.nn.Module:
        for name, child in module.named_children():
            setattr(module, name, EachToken(child) if isinstance(child, torch.nn.Linear) else replace(child))
        return module

    def way(module: torch.nn.Module) -> Way:
        return lambda features: module(**features).last_hidden_state

    whole_batch = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), dtype=torch.qint8)
    return {
        _REFERENCE: way(model),
        "torch quantize_dynamic, a scale for the batch": way(whole_batch),
        "torch _int_mm, a scale for each token": way(replace(copy.deepcopy(model))),
    }


def openvino_ways(command: Command, folder: Path) -> dict[str, Way]:
    """Return the ways of the server with OpenVINO, and 8 bits with larger groups of numbers per scale."""
    import torch

    from retrieval_server.encode.openvino_model import openvino_core, openvino_dtypes, use_openvino
    from retrieval_server.encode.options import OpenVinoOptions

    core = openvino_core()
    ways: dict[str, Way] = {}
    for dtype in ("float32", "bfloat16", "int8"):
        if dtype not in openvino_dtypes():
            print(f"without OpenVINO {dtype}: this processor has no such products")
            continue
        settings = OpenVinoOptions(folder / dtype, command.threads)
        computed = use_openvino(load(command.encoder), dtype, dtype, settings)
        ways[f"OpenVINO {dtype}"] = lambda features, computed=computed: computed(**features).last_hidden_state
    (graph,) = (folder / "int8").glob("*/model.xml")
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 384,
        "INFERENCE_NUM_THREADS": command.threads,
    }
    request = core.compile_model(graph, "CPU", options).create_infer_request()
    # The inputs of a converted model have no names; this is their order.
    order = ("input_ids", "attention_mask", "token_type_ids")

    def wide(features: Features) -> torch.Tensor:
        arrays = [features[name].numpy() for name in order if name in features]
        return torch.from_numpy(request.infer(arrays)[0])

    return ways | {"OpenVINO int8, a scale for 384 numbers": wide}


def onnx_ways(model: Any, features: Features, folder: Path, threads: int) -> dict[str, Way]:
    """Return the ways of ONNX Runtime: float32, and 8 bits with a scale per batch or per 32 weights."""
    import onnx
    import onnxruntime
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    names = list(features)
    plain, batch, blocks = (folder / f"{name}.onnx" for name in ("plain", "batch", "blocks"))

    class States(torch.nn.Module):
        """The transformer with positional inputs and one output, as tracing requires."""

        def __init__(self) -> None:
            super().__init__()
            self.transformer = model

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.transformer(**dict(zip(names, values, strict=True))).last_hidden_state

    torch.onnx.export(
        States().eval(),
        tuple(features.values()),
        str(plain),
        input_names=names,
        output_names=["states"],
        dynamic_axes=dict.fromkeys([*names, "states"], {0: "texts", 1: "tokens"}),
        dynamo=False,
    )
    logging.disable(logging.INFO)  # both quantisers log every node
    quantize_dynamic(plain, batch, weight_type=QuantType.QInt8, per_channel=True)
    # With accuracy level 4 the inputs of the products are rounded to 8 bits, too.
    quantizer = MatMulNBitsQuantizer(
        onnx.load(plain), bits=8, block_size=32, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(blocks))
    logging.disable(logging.NOTSET)

    def way(file: Path) -> Way:
        """Return the way that runs an ONNX file."""
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        input_names = {item.name for item in session.get_inputs()}

        def compute(features: Features) -> torch.Tensor:
            arrays = {key: value.numpy() for key, value in features.items() if key in input_names}
            return torch.from_numpy(session.run(None, arrays)[0])

        return compute

    return {
        "ONNX Runtime float32": way(plain),
        "ONNX Runtime quantize_dynamic, a scale for the batch": way(batch),
        "ONNX Runtime MatMulNBits, 8 bits in blocks of 32": way(blocks),
    }


def load(name: str) -> Any:
    """Load a SentenceTransformer in torch, from a model folder or by the name of a package's model."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    from retrieval_server.encode.model_folder import resolve_model

    disable_progress_bar()
    return SentenceTransformer(str(resolve_model(name)[1]), device="cpu", local_files_only=True)


def compare(ways: dict[str, Way], batches: dict[str, Features], rounds: int) -> list[str]:
    """Measure all ways, and return a table in Markdown with a line for each."""
    times: dict[tuple[str, str], list[float]] = {}
    for round_number in range(rounds + 1):  # round 0 warms up
        for size, features in batches.items():
            for name, way in ways.items():
                started = time.process_time()
                for _ in range(_REPEATS[size]):
                    way(features)
                if round_number:
                    times.setdefault((size, name), []).append(time.process_time() - started)
    questions = batches["64 questions"]
    expected = mean_states(ways[_REFERENCE], questions)
    rows = []
    for name, way in ways.items():
        cells = []
        for size in batches:
            pairs = zip(times[size, _REFERENCE], times[size, name], strict=True)
            cells.append(f"{statistics.median(reference / this for reference, this in pairs):.2f}")
        cosines = (mean_states(way, questions) * expected).sum(1)
        moved = moved_by_others(way, batches["8 questions"])
        cells += [f"{cosines.mean():.5f} ({cosines.min():.5f})", f"{moved:.3g}"]
        rows.append([name, *cells])
    return table(["", *batches, "cosine, mean (least)", "moved by others"], rows)


def mean_states(way: Way, features: Features) -> Any:
    """Return the mean of each text's states, normalised to length 1: (texts, width)."""
    import torch

    mask = features["attention_mask"][..., None]
    return torch.nn.functional.normalize((way(features) * mask).sum(1), dim=1)


def moved_by_others(way: Way, features: Features) -> float:
    """Return the largest difference, in any dimension, of a text's mean state alone and in this batch."""
    import torch

    texts = range(len(features["input_ids"]))
    alone = [mean_states(way, {key: value[i : i + 1] for key, value in features.items()}) for i in texts]
    return float((torch.cat(alone) - mean_states(way, features)).abs().max())


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its table; returns the exit status."""
    command = parse(Command, __doc__, argv)
    set_mkl_reproducible()
    import torch

    torch.set_num_threads(command.threads)
    with command.questions.open(encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line in islice(lines, 64)]
    with gzip.open(command.corpus, "rt", encoding="utf-8") as lines:
        passages = [json.loads(line)["contents"] for line in islice(lines, _SMALL_BATCH)]
    encoder = load(command.encoder)
    model = encoder[0].model.eval()

    def features(texts: list[str], tokens: int) -> Features:
        options = {"padding": "max_length", "truncation": True, "max_length": tokens, "return_tensors": "pt"}
        return dict(encoder.tokenizer(texts, **options))

    batches = {
        "one question": features(questions[:1], _QUESTION_TOKENS),
        "8 questions": features(questions[:_SMALL_BATCH], _QUESTION_TOKENS),
        "64 questions": features(questions, _QUESTION_TOKENS),
        "8 passages": features(passages, _PASSAGE_TOKENS),
    }
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates this quantisation and this export
        ways = torch_ways(model)
        for library, further_ways in (
            ("OpenVINO", lambda: openvino_ways(command, Path(folder))),
            ("ONNX Runtime", lambda: onnx_ways(model, batches["8 questions"], Path(folder), command.threads)),
        ):
            try:
                ways |= further_ways()
            except ImportError as error:
                print(f"without {library}: {error}")
        print("\n".join(compare(ways, batches, command.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
