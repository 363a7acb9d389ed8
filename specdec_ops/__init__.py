"""Speculative decoding operators: `torch.ops.specdec.*` and typed wrappers of the same names.

`LLM`, `SamplingParams` and `SpeculativeConfig`, the decode loop's front, are imported when they are asked for.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from specdec_ops.config import SamplingParams as SamplingParams
    from specdec_ops.config import SpeculativeConfig as SpeculativeConfig
    from specdec_ops.llm import LLM as LLM

__version__ = "0.1.0"

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


def __getattr__(name: str) -> Any:
    module = {"LLM": "llm", "SamplingParams": "config", "SpeculativeConfig": "config"}.get(name)
    if module is None:
        raise AttributeError(f"module 'specdec_ops' has no attribute {name!r}")
    return getattr(importlib.import_module(f"specdec_ops.{module}"), name)
