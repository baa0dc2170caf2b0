"""What every test shares: without a GPU, GPU tests are skipped and Triton kernels run in its interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so the variable is set here, before any test module
is imported. torch is imported only where a GPU is seen or a GPU test is selected: it costs seconds.
"""

import os

import pytest


def nvml_sees_a_gpu() -> bool:
    """Whether the NVIDIA driver reports a GPU; False too where there is no driver. Costs milliseconds."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount() > 0
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, no library, no permission: all mean that there is no GPU to use
        return False


def torch_has_cuda() -> bool:
    """Whether this torch can run on a GPU here (it may be a CPU build on a machine with one)."""
    import torch

    return torch.cuda.is_available()


if not (nvml_sees_a_gpu() and torch_has_cuda()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where torch finds no GPU."""
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests and not torch_has_cuda():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
