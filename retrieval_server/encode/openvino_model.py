"""Runs an encoder's transformer with OpenVINO on a CPU, in float32, bfloat16 or 8 bits.

The loaded torch module is traced into OpenVINO's form and compared with the original, and then takes its
place inside the sentence-transformers model: tokenizer, padding, pooling and prefixes stay what they were.

With `int8` each weight matrix is stored in 8 bits, one scale for each of its outputs. What is multiplied by
it is rounded to 8 bits while it is computed, with one scale for every 32 numbers of a token. No scale spans
two tokens, so neither padding nor the other texts of a batch change how a text is rounded. (A scale for a
whole batch, as in torch's dynamic quantisation and ONNX Runtime's, makes a query's vector depend on its
neighbours.) OpenVINO does this on x86 processors with VNNI; on others it unpacks the weights and computes in
float32.

A conversion is kept on disk (conversion_cache.py), in a folder named by a hash of the model's files and of
the versions of all that had a part in it. It is data: OpenVINO's XML and a file of numbers.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
import threading
import warnings
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers.modeling_outputs import BaseModelOutput

from retrieval_server.determinism import Determinism, ProbeResult
from retrieval_server.encode.batch_probe import stable_digest
from retrieval_server.encode.conversion_cache import cached_conversion
from retrieval_server.encode.options import OpenVinoOptions
from retrieval_server.errors import UserError

log = logging.getLogger(__name__)
_conversion_lock = threading.Lock()  # torch traces one model at a time in a process
_FORMAT = 1  # of a conversion: one more whenever this module makes another graph of the same model
_GRAPH = "model.xml"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_SCALE_GROUP_SIZE = 32  # of a token's, rounded with one scale: OpenVINO's own default
#: The least cosine that is accepted between a text's mean state in torch and in OpenVINO. A graph in float32
#: that is further off was traced wrongly; 8 bits usually give .99 and more.
_MIN_COSINE = {"float32": 0.9999, "int8": 0.9}


class OpenVinoTransformer(torch.nn.Module):
    """Takes the place of the transformer: token ids in, the states of the last layer out, in float32."""

    device = torch.device("cpu")

    def __init__(self, compiled: Any, inputs: list[str], config: Any, dtype: str):
        super().__init__()
        self.config, self._inputs, self._dtype = config, inputs, dtype
        self._request = compiled.create_infer_request()
        self._request_lock = threading.Lock()

    def forward(self, **features: Any) -> BaseModelOutput:
        inputs = [features[name].numpy() for name in self._inputs]
        with (
            self._request_lock
        ):  # a request computes one batch at a time; Ray Serve encodes in several threads
            states = self._request.infer(inputs)[0]
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))

    def probe(self) -> ProbeResult:
        """Measures what holds for a text's states whatever is in its batch, by computing some."""

        def compute(ids: torch.Tensor) -> torch.Tensor:
            return self(**_features(ids, torch.ones_like(ids), self._inputs)).last_hidden_state

        vocabulary = _vocabulary_size(self.config)
        digest = stable_digest(
            lambda shape, generator: torch.randint(vocabulary, shape, generator=generator), compute
        )
        fallback = Determinism.ORDER if self._dtype == "float32" else Determinism.NONE
        return ProbeResult(fallback) if digest is None else ProbeResult(Determinism.BITS, digest, fallback)


def use_openvino(
    model: SentenceTransformer, sha256: str, dtype: str, settings: OpenVinoOptions
) -> OpenVinoTransformer:
    """Let OpenVINO compute the transformer of `model` in `dtype`, float32, bfloat16 or int8.

    `sha256` identifies the model's files. The first time this converts it, which takes some seconds. Raises
    UserError if OpenVINO is not installed, the processor has no such type, or the model does not convert.
    """
    try:
        _import_openvino()
    except ImportError:
        raise UserError(
            '--runtime openvino and --dtype int8 need OpenVINO: pip install "rag-r1[openvino]"'
        ) from None
    core = openvino_core()
    if dtype == "bfloat16" and dtype not in openvino_dtypes():
        raise UserError(
            "--dtype bfloat16: this processor has no such products. Take --dtype int8, or float32."
        )
    transformer = model[0]
    if not isinstance(transformer, Transformer):
        raise UserError("--runtime openvino: the model is not a transformer. Take --runtime torch.")
    accepted = inspect.signature(transformer.model.forward).parameters
    features = model.tokenizer(["probe"])
    inputs = [name for name in _INPUTS if name in accepted and name in features]
    weights = "int8" if dtype == "int8" else "float32"
    with _conversion_lock:
        folder = _conversion(transformer.model, inputs, sha256, weights, settings)
    try:
        compiled = _compile(core, core.read_model(folder / _GRAPH), dtype, settings.threads)
    except RuntimeError as error:  # the only kind that OpenVINO raises
        raise UserError(
            f"{folder}: OpenVINO does not load it ({error}). Remove it, or encode with --runtime torch."
        ) from error
    converted = OpenVinoTransformer(compiled, inputs, transformer.model.config, dtype)
    transformer.model = converted
    return converted


def _import_openvino() -> ModuleType:
    """OpenVINO, which reports nothing to anybody.

    pip installs openvino-telemetry with it, which reports imports and conversions to Google Analytics unless
    the user has opted out. Where that package is missing nothing is reported: so its import is made to fail.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


@cache
def openvino_core() -> Any:
    """OpenVINO's core, one for the process, which is never given up. Raises ImportError without OpenVINO.

    A core's plugin for the CPU gives the thread that makes it a stack for signal handlers, and frees that
    stack with itself. When two cores of a thread are given up in the order in which they were made, the
    thread is left with a stack that is gone: the next SIGTERM is a segmentation fault (2026.4; seen in
    gdb).
    """
    return _import_openvino().Core()


def openvino_dtypes() -> tuple[str, ...]:
    """The number formats in which OpenVINO says that it computes here; not every CPU has bfloat16."""
    capabilities = openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return ("float32", "bfloat16", "int8") if "BF16" in capabilities else ("float32", "int8")


def _compile(core: Any, graph: Any, dtype: str, threads: int | None) -> Any:
    """The graph, compiled to compute in `dtype`; `threads`: None for one for each core."""
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, by all threads
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _SCALE_GROUP_SIZE if dtype == "int8" else 0,
    }
    if threads is not None:
        properties["INFERENCE_NUM_THREADS"] = threads
    return core.compile_model(graph, "CPU", properties)


def _conversion(
    transformer: torch.nn.Module, inputs: list[str], sha256: str, weights: str, settings: OpenVinoOptions
) -> Path:
    """The folder of the conversion, made if it is not there or not whole."""
    libraries = [f"{name} {version(name)}" for name in ("openvino", "torch", "transformers")]
    key = hashlib.sha256("\n".join([str(_FORMAT), sha256, weights, *libraries]).encode()).hexdigest()
    folder = settings.folder / f"{key[:32]}-{weights}"
    return cached_conversion(folder, partial(_convert, transformer, inputs, weights))


def _convert(transformer: torch.nn.Module, inputs: list[str], weights: str, work: Path) -> None:
    """Trace the transformer and write it to `work`. Raises UserError if it computes other states there."""
    openvino = _import_openvino()

    vocabulary = _vocabulary_size(transformer.config)
    ids = torch.randint(vocabulary, (4, 24), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(24) < torch.tensor([[24], [3], [17], [8]])).long()
    example = _features(ids, mask, inputs)
    states = _with_positional_inputs(transformer, inputs)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's, about branches that do not depend on the texts
            # Another shape than that of the comparison: a length that was traced as a constant shows.
            traced = tuple(value[:2, :16] for value in example.values())
            graph = openvino.convert_model(states, example_input=traced)
            reference = states(*example.values())
        if weights == "int8":
            _quantise(graph)
        openvino.save_model(graph, work / _GRAPH, compress_to_fp16=False)
        compiled = _compile(openvino_core(), openvino_core().read_model(work / _GRAPH), weights, None)
        converted = OpenVinoTransformer(compiled, inputs, transformer.config, weights)
        computed = converted(**example).last_hidden_state
    except (UserError, OSError):  # raised as they are: a model without matrices, a disk that is full
        raise
    except Exception as error:  # tracing raises whatever the model's code does
        raise UserError(f"OpenVINO does not convert the encoder ({error!r}). Use --runtime torch.") from error
    _check_cosines(computed, reference, mask, weights)


def _check_cosines(computed: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, weights: str) -> None:
    """Raises UserError if the mean states of texts, by OpenVINO and by torch, point in other directions.

    States are (texts, tokens, dimension); the mask, (texts, tokens), is 0 for padding.
    """
    token_mask = mask[..., None]
    cosines = torch.nn.functional.cosine_similarity(
        (computed * token_mask).sum(1), (reference * token_mask).sum(1)
    )
    if not cosines.min() >= _MIN_COSINE[weights]:
        raise UserError(
            f"OpenVINO computes other vectors than torch: a cosine of {cosines.min():.4f} in {weights}, "
            f"at least {_MIN_COSINE[weights]:g} is expected. Encode with --runtime torch --dtype float32."
        )
    log.info("converted in %s; mean cosine with torch on random tokens %.5f", weights, cosines.mean())


def _vocabulary_size(config: Any) -> int:
    """How many token ids a model knows. Raises UserError if its configuration does not say."""
    size = getattr(config.get_text_config(), "vocab_size", None)  # that of texts may be nested in another
    if not isinstance(size, int) or size < 1:
        raise UserError(f"--runtime openvino: vocab_size {size!r} gives no tokens. Take --runtime torch.")
    return size


def _with_positional_inputs(transformer: torch.nn.Module, inputs: list[str]) -> torch.nn.Module:
    """The transformer with its inputs by position and one output, as a tracer needs it."""

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.transformer(**dict(zip(inputs, values, strict=True))).last_hidden_state

    return States().eval()


def _features(ids: torch.Tensor, mask: torch.Tensor, inputs: list[str]) -> dict[str, torch.Tensor]:
    """The inputs of a transformer, (texts, tokens) each, by name and in the order of `inputs`."""
    features = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: features[name] for name in inputs}


def _quantise(graph: Any) -> None:
    """Replace the constant matrices of products by 8-bit ones, each with a scale for every output.

    Raises UserError if there is none: what is kept as 8 bits would be computed in float32.
    """
    from openvino import opset13 as ops

    replaced = 0
    for product in graph.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        weight = product.input_value(1).get_node()
        if weight.get_type_name() != "Constant" or weight.data.ndim != 2:
            continue
        over_inputs = 1 if product.get_attributes()["transpose_b"] else 0
        scale = np.abs(weight.data).max(axis=over_inputs, keepdims=True) / 127
        scale = np.where(scale > 0, scale, 1).astype(np.float32)
        rounded = np.rint(weight.data / scale).astype(np.int8)
        unpacked = ops.multiply(ops.convert(ops.constant(rounded), "f32"), ops.constant(scale))
        product.input(1).replace_source_output(unpacked.output(0))
        replaced += 1
    if replaced == 0:
        raise UserError("--dtype int8: the encoder has no matrix. Take --runtime openvino --dtype float32.")
