"""The simulated device: which one, in which order its cores run, and what its kernels moved."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from backends import BACKENDS

OPERATORS = BACKENDS["sim"][0]
needs_simulator = pytest.mark.skipif(isinstance(OPERATORS, str), reason=str(OPERATORS))

# Different numbers of cores, in different orders: results and memory traffic depend on neither.
DEVICES = [("910B1", 1), ("910B4", 2), ("910B4", 3)]
on_devices = pytest.mark.parametrize(("profile", "seed"), DEVICES)


class Device:
    def __getattr__(self, operator: str) -> Any:
        return getattr(OPERATORS, operator)

    def launches(self) -> list[dict]:
        """Reports of the launches since the last call."""
        return json.loads(OPERATORS.take_reports())


@contextmanager
def device(profile: str, seed: int) -> Iterator[Device]:
    OPERATORS.configure(profile, seed, True)
    try:
        yield Device()
    finally:
        OPERATORS.configure("910B3")
