"""The NPU binding without an NPU: that it builds against torch_npu, and that what is built works on a fake device."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import fake_npu
import pytest
import torch

from specdec_ops import devices

SETUP = fake_npu.setup_py()

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed: no need to play its part"
)


@pytest.fixture(scope="module")
def binding() -> Path:
    """Compiled against the headers and linked with the library of torch_npu's wheel."""
    try:
        return fake_npu.build()[-1]
    except fake_npu.Unavailable as missing:
        pytest.skip(str(missing))


def test_operators_on_the_fake_npu(binding):
    # A process of its own: what `npu` means cannot be taken back.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(fake_npu.HERE / "on_npu.py")]
    done = subprocess.run(command, cwd=fake_npu.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_that_torch_npu_does_not_have_is_found(binding, tmp_path):
    source = tmp_path / "missing.cpp"
    source.write_text("namespace c10_npu { void no_such_function(); }\nvoid call() { c10_npu::no_such_function(); }\n")
    libraries = [f"-L{fake_npu.torch_npu() / 'lib'}", "-ltorch_npu", "-Wl,--no-undefined"]
    command = ["g++", "-shared", "-fPIC", str(source), *libraries, "-o", str(tmp_path / "missing.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "undefined reference to `c10_npu::no_such_function()'" in done.stderr


@pytest.fixture
def ascend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with CANN and torch_npu, as far as setup.py can tell."""
    bisheng = tmp_path / "cann" / "compiler" / "ccec_compiler" / "bin" / "bisheng"
    bisheng.parent.mkdir(parents=True)
    bisheng.touch(mode=0o755)
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('setup.py must not import it')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    monkeypatch.delenv("SOC_VERSION", raising=False)
    monkeypatch.delenv("SPECDEC_NPU", raising=False)
    return tmp_path


def test_setup_builds_for_the_npu_where_it_can(ascend, monkeypatch):
    library = SETUP.libraries()["_npu"]
    found = {source.path.name for source in library.sources}
    in_tree = {path.name for pattern in ("*.cpp", "*.asc") for path in (fake_npu.ROOT / "bindings/npu").glob(pattern)}
    assert in_tree <= found
    assert library.linker.startswith(str(ascend / "cann/compiler/ccec_compiler/bin/bisheng"))
    assert f"-L{ascend}/torch_npu/lib" in library.link
    monkeypatch.setenv("SPECDEC_NPU", "0")
    assert "_npu" not in SETUP.libraries()


def test_setup_names_what_is_missing(ascend, monkeypatch, capsys):
    monkeypatch.setenv("ASCEND_HOME_PATH", "/nowhere")
    monkeypatch.setenv("PATH", "")
    assert "_npu" not in SETUP.libraries()
    message = capsys.readouterr().out
    assert "the NPU's library is not built; missing: bisheng" in message and "/nowhere" in message
    assert "torch_npu" not in message
    monkeypatch.setattr(sys, "path", sys.path[1:])
    importlib.invalidate_caches()
    monkeypatch.setenv("SOC_VERSION", "Ascend310P3")
    monkeypatch.setenv("SPECDEC_NPU", "1")
    with pytest.raises(SystemExit, match=r"SPECDEC_NPU=1.* bisheng .*; torch_npu .*; .* not SOC_VERSION=Ascend310P3"):
        SETUP.libraries()


def test_the_library_is_loaded_where_torch_npu_is(ascend, monkeypatch):
    monkeypatch.setattr(devices, "why_no_npu", devices.why_no_npu)  # to have it back afterwards
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(devices, "__file__", str(ascend / "devices.py"))
    devices.load_npu()
    assert loaded == []  # not built
    (ascend / "_npu.so").touch()
    with pytest.warns(UserWarning, match="must not import"):
        devices.load_npu()
    assert loaded == []
    monkeypatch.setitem(
        sys.modules, "torch_npu", importlib.util.module_from_spec(importlib.util.find_spec("torch_npu"))
    )
    devices.load_npu()
    assert loaded == [str(ascend / "_npu.so")] and devices.why_no_npu is None
