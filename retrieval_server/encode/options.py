"""What a user can choose about an encoder."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from retrieval_server.command_line import AtLeastOne, Flag, Group, Options

DENSE = Group("dense")

Pooling = Literal["cls", "mean", "max", "lasttoken"]
POOLINGS = get_args(Pooling)

Device = Annotated[
    str | None, Flag("cpu, cuda, cuda:1, ... for the encoder (default: a GPU if torch sees one)")
]
DType = Annotated[
    Literal["float32", "bfloat16", "float16"],
    Flag("what the encoder computes in; the 16-bit types are for GPUs, on a CPU they are slower"),
]


class EncoderOptions(Options):
    """How a new index uses its encoder; None leaves a setting to the model's folder or family."""

    group = DENSE

    pooling: Annotated[
        Pooling | None,
        Flag("how token vectors become one, for a model folder that does not say"),
    ] = None
    query_prefix: Annotated[
        str | None, Flag("put before every query; give its trailing space too", metavar="TEXT")
    ] = None
    passage_prefix: Annotated[str | None, Flag("put before every passage", metavar="TEXT")] = None
    separator: Annotated[
        str | None, Flag("joins the parts of a query that is made of several texts", metavar="TEXT")
    ] = None
    normalize: Annotated[
        bool | None, Flag("scale vectors to length 1 (default: as the model was trained)")
    ] = None
    max_length: Annotated[
        AtLeastOne | None,
        Flag("cut longer texts (default: the model's own limit, 512 at most)", metavar="TOKENS"),
    ] = None
