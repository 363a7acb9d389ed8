"""The conformance suite runs once a backend: `backend.<operator>` is the operator, `backend.device` its device."""

import os
from typing import Any

import hypothesis
import pytest
from backends import BACKENDS, Backend


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """`SPECDEC_MAX_EXAMPLES` bounds the examples of a property test: for backends that interpret."""
    # What interpreters and the simulator would take an hour for, and what stands for it there.
    too_slow = {
        "triton": ({"test_losslessness.py"}, "equal results for equal uniforms stand for them"),
        "sim": (
            {"test_losslessness.py", "test_batch_invariance", "test_a_row_does_not_depend_on_the_batch"},
            "smaller ones are in tests/ascendc",
        ),
    }
    for item in items:
        callspec = getattr(item, "callspec", None)
        names, instead = too_slow.get(callspec.params.get("backend") if callspec else None, (set(), ""))
        if {item.path.name, getattr(item, "originalname", item.name)} & names:
            item.add_marker(pytest.mark.skip(reason=f"too many draws; {instead}"))
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
