"""The README's Python examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("source", EXAMPLES)
def test_example(source):
    exec(compile(source, "README.md", "exec"), {})
