"""The conformance suite runs once a backend: `backend.<operator>` is the operator, `backend.device` its device."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

import specdec_ops.reference


class Backend:
    def __init__(self, name: str, operators: Any, device: str) -> None:
        self.name, self._operators, self.device = name, operators, torch.device(device)

    def __getattr__(self, operator: str) -> Any:
        return getattr(self._operators, operator)

    def __repr__(self) -> str:
        return self.name


def _accelerator(name: str) -> Any:
    module = getattr(torch, name, None)
    return torch.ops.specdec if module is not None and module.is_available() else f"no {name} device"


def _simulator() -> Any:
    has_operators = hasattr(torch.ops.specdec_sim, "verify_chain")
    return torch.ops.specdec_sim if has_operators else "the simulator's operators are not built"


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
    return importlib.import_module("specdec_ops.triton")


# name -> (operators, or the reason why there are none; device)
BACKENDS = {
    "reference": (specdec_ops.reference, "cpu"),
    "cpu": (torch.ops.specdec, "cpu"),
    "sim": (_simulator(), "cpu"),
    "triton": (_triton(), "cpu"),
    "npu": (_accelerator("npu"), "npu"),
    "cuda": (_accelerator("cuda"), "cuda"),
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """`SPECDEC_MAX_EXAMPLES` bounds the examples of a property test: for backends that interpret."""
    # Thousands of requests a test are an hour in the interpreter. Equal results for equal uniforms stand for it there.
    too_slow = pytest.mark.skip(reason="too many draws for Triton's interpreter; compared with the reference instead")
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and callspec.params.get("backend") == "triton" and item.path.name == "test_losslessness.py":
            item.add_marker(too_slow)
    limit = int(os.environ.get("SPECDEC_MAX_EXAMPLES", "0"))
    for item in items if limit else ():
        settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if settings is not None and settings.max_examples > limit:
            item.obj._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=limit)


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    operators, device = BACKENDS[request.param]
    if isinstance(operators, str):
        pytest.skip(operators)
    return Backend(request.param, operators, device)
