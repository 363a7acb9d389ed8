"""The conformance suite runs once a backend: `backend.<operator>` is the operator, `backend.device` its device."""

import os
import zlib
from typing import Any

import hypothesis
import pytest
from backends import BACKENDS, INTERPRETED, Backend


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """`SPECDEC_MAX_EXAMPLES` bounds the examples of a property test: for backends that interpret.

    `SPECDEC_SIM_PROFILE` is the device that the simulator simulates, 910B1 by default.
    """
    for item in items:
        callspec, large = getattr(item, "callspec", None), item.get_closest_marker("large")
        if large and callspec and callspec.params.get("backend") in INTERPRETED:
            item.add_marker(pytest.mark.skip(reason=f"too large to interpret: {large.args[0]}"))
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
    if request.param == "sim":
        # Results depend neither on how many cores a device has nor on the order in which they run.
        operators.configure(os.environ.get("SPECDEC_SIM_PROFILE", "910B1"), zlib.crc32(request.node.nodeid.encode()))
    return Backend(request.param, operators, device)
