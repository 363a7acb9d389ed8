"""Facts about the machine, and its limits measured on the spot: read and copy bandwidth, arithmetic peaks."""

import datetime
import functools
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def read(tensors: list[Tensor]) -> None:
    """Reads every byte once with all threads: a dot product of the two halves was the fastest reader torch has."""
    for tensor in tensors:
        words = tensor.reshape(-1).view(torch.float32)
        half = words.numel() // 2
        torch.dot(words[:half], words[half : 2 * half])


@functools.cache
def gemm(dtype: torch.dtype) -> tuple[Callable[[], Tensor], float]:
    """A square matrix product near the arithmetic peak of `dtype`, and its FLOPs."""
    size = 1024 if dtype == torch.float32 else 2048
    a, b = torch.randn(2, size, size).to(dtype)
    return lambda: torch.mm(a, b), 2.0 * size**3


def best_s(run: Callable[[], Any], seconds: float = 0.15) -> float:
    """The best of at least five calls and at least `seconds`."""
    samples: list[float] = []
    while len(samples) < 5 or sum(samples) < seconds:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return min(samples)


def limits() -> dict[str, Any]:
    """Best of several, in GB/s and GFLOP/s. Bandwidth depends on the working set: what a cache holds comes faster."""
    result: dict[str, Any] = {"read_gb_s": {}, "copy_gb_s": {}, "gflop_s": {}}
    for megabytes in (4, 16, 64, 256, 1024):
        source, target = torch.ones(2, megabytes << 17)  # together they are the working set
        size = 2.0 * source.nbytes
        result["read_gb_s"][f"{megabytes} MiB"] = size / best_s(lambda: read([source, target])) / 1e9  # noqa: B023
        # Bytes read plus bytes written.
        result["copy_gb_s"][f"{megabytes} MiB"] = size / best_s(lambda: target.copy_(source)) / 1e9  # noqa: B023
    for dtype in (torch.float32, torch.bfloat16):
        run, flops = gemm(dtype)
        result["gflop_s"][str(dtype).removeprefix("torch.")] = flops / best_s(run) / 1e9
    return result


def cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family')}, model {fields.get('model')})"


def facts() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "threads": torch.get_num_threads(),
        "limits": limits(),
    }
