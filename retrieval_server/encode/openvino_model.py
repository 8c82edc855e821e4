"""Runs an encoder's transformer with OpenVINO on a CPU, in float32, bfloat16 or 8 bits.

The loaded torch module is traced into OpenVINO's format and, in float32 or 8 bits, compared with the
original. Then it replaces the original inside the sentence-transformers model, whose tokenizer, padding,
pooling and prefixes stay the same. bfloat16 computes with the conversion to float32.

With `int8` each weight matrix is stored in 8 bits, with one scale for each of its outputs. The other factor
of a product is rounded to 8 bits during the computation, with one scale for every 32 numbers of a token. No
scale spans two tokens, so neither padding nor the other texts of a batch change how a text is rounded. (A
scale for a whole batch, as in the dynamic quantisation of torch and ONNX Runtime, would make the vector of a
query depend on the other queries.) OpenVINO does this on x86 processors with VNNI; on others it unpacks the
weights and computes in float32.

A conversion is kept on disk (conversion_cache.py), in a folder that is named by a hash of the model's files
and the versions of the libraries involved. It contains data only: OpenVINO's XML and a file of numbers.
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
from retrieval_server.encode.options import DType, OpenVinoOptions
from retrieval_server.errors import UserError

log = logging.getLogger(__name__)
_conversion_lock = threading.Lock()  # torch traces one model at a time in a process
_FORMAT = 1  # version of the conversions: increase it when this module converts a model differently
_GRAPH = "model.xml"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_SCALE_GROUP_SIZE = 32  # numbers of a token that share a scale; this is OpenVINO's default
#: The smallest accepted cosine between the mean states of a text in torch and in OpenVINO. A float32 graph
#: below it was traced wrongly; 8 bits usually reach .99 or more.
_MIN_COSINE = {"float32": 0.9999, "int8": 0.9}


class OpenVinoTransformer(torch.nn.Module):
    """Replaces the transformer in a model. It converts token ids to the last layer's states in float32."""

    device = torch.device("cpu")

    def __init__(self, compiled: Any, inputs: list[str], config: Any, dtype: DType):
        super().__init__()
        self.config, self._inputs, self._dtype = config, inputs, dtype
        self._request = compiled.create_infer_request()
        self._request_lock = threading.Lock()

    def forward(self, **features: Any) -> BaseModelOutput:
        inputs = [features[name].numpy() for name in self._inputs]
        # Ray Serve encodes in several threads, but a request can compute only one batch at a time.
        with self._request_lock:
            states = self._request.infer(inputs)[0]
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))

    def probe(self) -> ProbeResult:
        """Measure what holds for the states of a text, whatever else is in its batch."""

        def compute(ids: torch.Tensor) -> torch.Tensor:
            return self(**_features(ids, torch.ones_like(ids), self._inputs)).last_hidden_state

        vocabulary = _vocabulary_size(self.config)
        digest = stable_digest(
            lambda shape, generator: torch.randint(vocabulary, shape, generator=generator), compute
        )
        fallback = Determinism.ORDER if self._dtype == "float32" else Determinism.NONE
        return ProbeResult(fallback) if digest is None else ProbeResult(Determinism.BITS, digest, fallback)


def use_openvino(
    model: SentenceTransformer, sha256: str, dtype: DType, settings: OpenVinoOptions
) -> OpenVinoTransformer:
    """Make OpenVINO compute the transformer of `model` in `dtype`, which is float32, bfloat16 or int8.

    `sha256` identifies the model's files. The first call for a model converts it, which takes some seconds.
    Raises UserError if OpenVINO is not installed, the processor does not support the type, or the conversion
    fails.
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
    weights: DType = "int8" if dtype == "int8" else "float32"
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
    """Import OpenVINO without its telemetry.

    pip also installs openvino-telemetry, which reports imports and conversions to Google Analytics unless the
    user has opted out. OpenVINO reports nothing if that package is missing, so its import is made to fail.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


@cache
def openvino_core() -> Any:
    """Return the only core of OpenVINO in this process, which is never released.

    The CPU plugin of a core installs a stack for signal handlers in the thread that creates it, and frees
    this stack with the core. If a thread releases two cores in the order of their creation, it is left with a
    freed stack, and the next SIGTERM is a segmentation fault (2026.4; seen in gdb). Raises ImportError
    without OpenVINO.
    """
    return _import_openvino().Core()


def openvino_dtypes() -> tuple[str, ...]:
    """Return the number formats that OpenVINO supports on this CPU; not every CPU has bfloat16."""
    capabilities = openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return ("float32", "bfloat16", "int8") if "BF16" in capabilities else ("float32", "int8")


def _compile(core: Any, graph: Any, dtype: DType, threads: int | None) -> Any:
    """Compile the graph to compute in `dtype` with this number of threads (None: one for each core)."""
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, by all threads
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _SCALE_GROUP_SIZE if dtype == "int8" else 0,
    }
    if threads is not None:
        properties["INFERENCE_NUM_THREADS"] = threads
    return core.compile_model(graph, "CPU", properties)


def _conversion(
    transformer: torch.nn.Module, inputs: list[str], sha256: str, weights: DType, settings: OpenVinoOptions
) -> Path:
    """Return the folder of the conversion, which is created if it is missing or damaged.

    `weights` is the number format of the stored weights, float32 or int8; bfloat16 is chosen at compilation.
    """
    libraries = [f"{name} {version(name)}" for name in ("openvino", "torch", "transformers")]
    key = hashlib.sha256("\n".join([str(_FORMAT), sha256, weights, *libraries]).encode()).hexdigest()
    folder = settings.folder / f"{key[:32]}-{weights}"
    return cached_conversion(folder, partial(_convert, transformer, inputs, weights))


def _convert(transformer: torch.nn.Module, inputs: list[str], weights: DType, work: Path) -> None:
    """Trace the transformer and write it to `work`. Raises UserError if the copy computes other states."""
    openvino = _import_openvino()

    vocabulary = _vocabulary_size(transformer.config)
    ids = torch.randint(vocabulary, (4, 24), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(24) < torch.tensor([[24], [3], [17], [8]])).long()
    example = _features(ids, mask, inputs)
    states = _with_positional_inputs(transformer, inputs)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's, about branches that do not depend on the texts
            # The shape differs from that of the comparison, which reveals a length that was traced as a
            # constant.
            traced = tuple(value[:2, :16] for value in example.values())
            graph = openvino.convert_model(states, example_input=traced)
            reference = states(*example.values())
        if weights == "int8":
            _quantise(graph)
        openvino.save_model(graph, work / _GRAPH, compress_to_fp16=False)
        compiled = _compile(openvino_core(), openvino_core().read_model(work / _GRAPH), weights, None)
        converted = OpenVinoTransformer(compiled, inputs, transformer.config, weights)
        computed = converted(**example).last_hidden_state
    except (UserError, OSError):  # a model without matrices, or a full disk
        raise
    except Exception as error:  # tracing raises any error of the model's code
        raise UserError(f"OpenVINO does not convert the encoder ({error!r}). Use --runtime torch.") from error
    _check_cosines(computed, reference, mask, weights)


def _check_cosines(computed: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, weights: str) -> None:
    """Raise UserError if the mean states of a text in OpenVINO and in torch point in different directions.

    States are (texts, tokens, dimension). The mask, (texts, tokens), is 0 for padding.
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
    """Return the number of token ids of a model. Raises UserError if its configuration does not say."""
    size = getattr(config.get_text_config(), "vocab_size", None)  # the configuration may be nested
    if not isinstance(size, int) or size < 1:
        raise UserError(f"--runtime openvino: vocab_size {size!r} gives no tokens. Take --runtime torch.")
    return size


def _with_positional_inputs(transformer: torch.nn.Module, inputs: list[str]) -> torch.nn.Module:
    """Return the transformer with positional inputs and a single output, as the tracer needs it."""

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.transformer(**dict(zip(inputs, values, strict=True))).last_hidden_state

    return States().eval()


def _features(ids: torch.Tensor, mask: torch.Tensor, inputs: list[str]) -> dict[str, torch.Tensor]:
    """Return the inputs of a transformer, (texts, tokens) each, by name and in the order of `inputs`."""
    features = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: features[name] for name in inputs}


def _quantise(graph: Any) -> None:
    """Replace the constant matrices of products by 8-bit ones with a scale for every output.

    Raises UserError if there is no such matrix, since the result would still compute in float32.
    """
    from openvino import opset13 as ops

    replaced = 0
    for product in graph.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        weight = product.input_value(1).get_node()
        if weight.get_type_name() != "Constant" or weight.data.ndim != 2:
            continue
        input_axis = 1 if product.get_attributes()["transpose_b"] else 0
        scale = np.abs(weight.data).max(axis=input_axis, keepdims=True) / 127
        scale = np.where(scale > 0, scale, 1).astype(np.float32)
        rounded = np.rint(weight.data / scale).astype(np.int8)
        unpacked = ops.multiply(ops.convert(ops.constant(rounded), "f32"), ops.constant(scale))
        product.input(1).replace_source_output(unpacked.output(0))
        replaced += 1
    if replaced == 0:
        raise UserError("--dtype int8: the encoder has no matrix. Take --runtime openvino --dtype float32.")
