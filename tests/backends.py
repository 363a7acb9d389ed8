"""The backends that the conformance suite knows, and why those are absent that are."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import specdec_ops.reference
from specdec_ops.devices import triton_kernel

# Whose kernels are interpreted, as Python or instruction by instruction: a block costs what an element costs elsewhere.
INTERPRETED = {"sim"} | ({"triton"} if importlib.util.find_spec("ascendnpuir") is None else set())


class Backend:
    def __init__(self, name: str, operators: Any, device: str) -> None:
        self.name, self._operators, self.device = name, operators, torch.device(device)

    def __getattr__(self, operator: str) -> Any:
        return getattr(self._operators, operator)

    def scale(self, full: Any, interpreted: Any) -> Any:
        """A size of the test: the second for a backend that interprets."""
        return interpreted if self.name in INTERPRETED else full

    def __repr__(self) -> str:
        return self.name


def _accelerator(name: str) -> Any:
    module = getattr(torch, name, None)
    return torch.ops.specdec if module is not None and module.is_available() else f"no {name} device"


def _simulator() -> Any:
    """The Ascend C kernels on the host simulator, strict. A fault of a kernel raises."""
    library = Path(specdec_ops.__file__).with_name("_sim.so")
    if not library.exists():
        return "the simulator's operators are not built (SPECDEC_SIM=1 builds them)"
    torch.ops.load_library(str(library))
    return torch.ops.specdec_sim


def _triton() -> Any:
    """In Triton's interpreter; under triton-ascend lowered, as native code. With a device `cuda` and `npu` run them."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if torch.cuda.is_available():
        return "triton compiles for the CUDA device"
    sys.path.append(str(Path(__file__).with_name("triton_backend")))
    if importlib.util.find_spec("ascendnpuir") is not None:
        importlib.import_module("native").install()
    else:
        importlib.import_module("interpreter")
    return SimpleNamespace(**{name: triton_kernel(name) for name in specdec_ops.reference.__all__})


# name -> (operators, or the reason why there are none; device)
BACKENDS = {
    "reference": (specdec_ops.reference, "cpu"),
    "cpu": (torch.ops.specdec, "cpu"),
    "sim": (_simulator(), "cpu"),
    "triton": (_triton(), "cpu"),
    "npu": (_accelerator("npu"), "npu"),
    "cuda": (_accelerator("cuda"), "cuda"),
}

# The reference has no host checks, and is a slow loop over float64.
without_reference = pytest.mark.parametrize(
    "backend", [name for name in BACKENDS if name != "reference"], indirect=True
)
