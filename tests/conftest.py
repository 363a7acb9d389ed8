"""The conformance suite runs once a backend: `backend.<operator>` is the operator, `backend.device` its device."""

import os
from typing import Any

import hypothesis
import pytest
from backends import BACKENDS, Backend


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
