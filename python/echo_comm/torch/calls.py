"""The collectives of Communicator on tensors. They are contiguous; parts are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from echo_comm import BFLOAT16, FLOAT16, FLOAT32, Communicator, Feedback, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

CODES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


def all_reduce(comm: Communicator, x: Tensor, state: Feedback | None, **options: Unpack[Options]) -> None:
    """In place."""
    comm.all_reduce(x.data_ptr(), x.numel(), CODES[x.dtype], feedback=state, **options)


def reduce_scatter(
    comm: Communicator, whole: Tensor, part: Tensor, state: Feedback | None, **options: Unpack[Options]
) -> None:
    """`part` becomes this rank's part of the sum."""
    where = (whole.data_ptr(), part.data_ptr(), whole.numel(), CODES[whole.dtype])
    comm.reduce_scatter(*where, feedback=state, **options)


def all_gather(comm: Communicator, part: Tensor, whole: Tensor, **options: Unpack[Options]) -> None:
    """`whole` becomes the parts of all ranks."""
    comm.all_gather(part.data_ptr(), whole.data_ptr(), whole.numel(), CODES[whole.dtype], **options)
