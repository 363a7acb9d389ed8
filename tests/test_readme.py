"""The Python examples of the README, and of those documents whose examples are whole, run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    document: re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    for document in ("README.md", "docs/flashinfer.md", "docs/torch_npu.md")
}


def test_there_are_examples():
    assert all(EXAMPLES.values())


@pytest.mark.parametrize(
    ("document", "source"), [(document, source) for document, sources in EXAMPLES.items() for source in sources]
)
def test_example(document, source):
    exec(compile(source, document, "exec"), {})
