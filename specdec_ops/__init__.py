"""Speculative decoding operators: `torch.ops.specdec.*` and typed wrappers of the same names."""

from pathlib import Path

import torch

_library = Path(__file__).with_name("_C.so")
if not _library.exists():
    raise ImportError(
        f"specdec_ops: the compiled operators are missing ({_library}); build them with "
        "`pip install --no-build-isolation -e .`"
    )
torch.ops.load_library(str(_library))

from specdec_ops.devices import load_npu, register_triton  # noqa: E402
from specdec_ops.ops import *  # noqa: E402, F403
from specdec_ops.ops import __all__  # noqa: E402

load_npu()
register_triton([name for name in __all__ if name != "check"])
