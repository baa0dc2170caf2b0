"""The fused ops and their alternatives as asv benchmarks: seconds of one call, cold and hot L2, at workloads' shapes.

They run only on request: `asv run --bench kernels.Kernel` (or `--bench "kernels.*256x256.*backward"`). Each of
hundreds of combinations costs a process of several seconds. The command `ladder kernels` measures the same cases,
ours and the alternatives in turn, and alone gives verdicts.

asv stores results by position, so these lists may only grow at their end. A name states op, shape, precision and
memory format. A fingerprint freezes the op's arguments. If `ladder.studies.kernelbench.cases` changes the
meaning of an entry, the entry needs a new name there and here.
"""

from __future__ import annotations

import sys

from asv_runner.benchmarks.mark import SkipNotImplemented

from benches._measure import able, leave_choices

CASES = [
    "bias_act noise scale 8x64x256x256 bf16 channels_last",
    "bias_act noise scale 8x128x128x128 bf16 channels_last",
    "bias_act noise scale 8x256x64x64 bf16 channels_last",
    "bias_act noise scale 8x512x32x32 bf16 channels_last",
    "bias_act noise scale 32x64x256x256 bf16 channels_last",
    "bias_act noise scale 32x128x128x128 bf16 channels_last",
    "bias_act noise scale 32x256x64x64 bf16 channels_last",
    "bias_act noise scale 32x512x32x32 bf16 channels_last",
    "bias_act 8x64x256x256 bf16 channels_last",
    "bias_act 8x128x128x128 bf16 channels_last",
    "bias_act 8x256x64x64 bf16 channels_last",
    "bias_act 8x512x32x32 bf16 channels_last",
    "bias_act 32x64x256x256 bf16 channels_last",
    "bias_act 32x128x128x128 bf16 channels_last",
    "bias_act 32x256x64x64 bf16 channels_last",
    "bias_act 32x512x32x32 bf16 channels_last",
    "modulate 8x64x256x256 bf16 channels_last",
    "modulate 8x128x128x128 bf16 channels_last",
    "modulate 8x256x64x64 bf16 channels_last",
    "modulate 8x512x32x32 bf16 channels_last",
    "modulate 32x64x256x256 bf16 channels_last",
    "modulate 32x128x128x128 bf16 channels_last",
    "modulate 32x256x64x64 bf16 channels_last",
    "modulate 32x512x32x32 bf16 channels_last",
    "instance_norm_act 8x64x256x256 bf16 channels_last",
    "instance_norm_act 8x128x128x128 bf16 channels_last",
    "instance_norm_act 8x256x64x64 bf16 channels_last",
    "instance_norm_act 8x512x32x32 bf16 channels_last",
    "demodulate 512x512x3x3 batch 8 fp32 channels_last",
    "demodulate 256x256x3x3 batch 8 fp32 channels_last",
    "demodulate 128x128x3x3 batch 8 fp32 channels_last",
    "demodulate 64x64x3x3 batch 8 fp32 channels_last",
    "demodulate 512x512x3x3 batch 32 fp32 channels_last",
    "demodulate 256x256x3x3 batch 32 fp32 channels_last",
    "demodulate 128x128x3x3 batch 32 fp32 channels_last",
    "demodulate 64x64x3x3 batch 32 fp32 channels_last",
    "upfirdn2d after up 8x64x257x257 bf16 channels_last",
    "upfirdn2d after up 8x128x129x129 bf16 channels_last",
    "upfirdn2d after up 32x64x257x257 bf16 channels_last",
    "upfirdn2d after up 32x128x129x129 bf16 channels_last",
    "upfirdn2d before down 8x64x256x256 bf16 channels_last",
    "upfirdn2d before down 8x128x128x128 bf16 channels_last",
    "upfirdn2d before down 32x64x256x256 bf16 channels_last",
    "upfirdn2d before down 32x128x128x128 bf16 channels_last",
    "upfirdn2d down 8x64x256x256 bf16 channels_last",
    "upfirdn2d down 8x128x128x128 bf16 channels_last",
    "upfirdn2d down 32x64x256x256 bf16 channels_last",
    "upfirdn2d down 32x128x128x128 bf16 channels_last",
    "upfirdn2d up 8x64x128x128 bf16 channels_last",
    "upfirdn2d up 8x128x64x64 bf16 channels_last",
    "upfirdn2d up 32x64x128x128 bf16 channels_last",
    "upfirdn2d up 32x128x64x64 bf16 channels_last",
    "conv2d 8x64x256x256 bf16 channels_last",
    "conv2d 8x128x128x128 bf16 channels_last",
    "conv2d 32x64x256x256 bf16 channels_last",
    "conv2d 32x128x128x128 bf16 channels_last",
    "scale_act 8x64x256x256 bf16 channels_last",
    "scale_act 8x128x128x128 bf16 channels_last",
    "scale_act 8x256x64x64 bf16 channels_last",
    "scale_act 8x512x32x32 bf16 channels_last",
    "scale_act 32x64x256x256 bf16 channels_last",
    "scale_act 32x128x128x128 bf16 channels_last",
    "scale_act 32x256x64x64 bf16 channels_last",
    "scale_act 32x512x32x32 bf16 channels_last",
    "act_filter 8x64x256x256 bf16 channels_last",
    "act_filter 8x128x128x128 bf16 channels_last",
    "act_filter 8x256x64x64 bf16 channels_last",
    "act_filter 8x512x32x32 bf16 channels_last",
    "act_filter 32x64x256x256 bf16 channels_last",
    "act_filter 32x128x128x128 bf16 channels_last",
    "act_filter 32x256x64x64 bf16 channels_last",
    "act_filter 32x512x32x32 bf16 channels_last",
    "filter_act 8x64x257x257 R256 bf16 channels_last",
    "filter_act 8x128x129x129 R128 bf16 channels_last",
    "filter_act 8x256x65x65 R64 bf16 channels_last",
    "filter_act 8x512x33x33 R32 bf16 channels_last",
    "filter_act 32x64x257x257 R256 bf16 channels_last",
    "filter_act 32x128x129x129 R128 bf16 channels_last",
    "filter_act 32x256x65x65 R64 bf16 channels_last",
    "filter_act 32x512x33x33 R32 bf16 channels_last",
    "bias_act_residual 8x128x128x128 bf16 channels_last",
    "bias_act_residual 8x256x64x64 bf16 channels_last",
    "bias_act_residual 8x512x32x32 bf16 channels_last",
    "bias_act_residual 32x128x128x128 bf16 channels_last",
    "bias_act_residual 32x256x64x64 bf16 channels_last",
    "bias_act_residual 32x512x32x32 bf16 channels_last",
    "fork_upfirdn2d 8x64x256x256 bf16 channels_last",
    "fork_upfirdn2d 8x128x128x128 bf16 channels_last",
    "fork_upfirdn2d 8x256x64x64 bf16 channels_last",
    "fork_upfirdn2d 8x512x32x32 bf16 channels_last",
    "fork_upfirdn2d 32x64x256x256 bf16 channels_last",
    "fork_upfirdn2d 32x128x128x128 bf16 channels_last",
    "fork_upfirdn2d 32x256x64x64 bf16 channels_last",
    "fork_upfirdn2d 32x512x32x32 bf16 channels_last",
    "minibatch_std 16x512x4x4 bf16 channels_last",
    "minibatch_std 64x512x4x4 bf16 channels_last",
    "to_rgb 8x64x256x256 bf16 channels_last",
    "to_rgb 8x128x128x128 bf16 channels_last",
    "to_rgb 8x256x64x64 bf16 channels_last",
    "to_rgb 8x512x32x32 bf16 channels_last",
    "to_rgb 32x64x256x256 bf16 channels_last",
    "to_rgb 32x128x128x128 bf16 channels_last",
    "to_rgb 32x256x64x64 bf16 channels_last",
    "to_rgb 32x512x32x32 bf16 channels_last",
    "from_rgb 16x3x256x256 C64 bf16 channels_last",
    "from_rgb 64x3x256x256 C64 bf16 channels_last",
    "dense 8x8192 O512 fp32 channels_last",
    "dense 16x512 O512 fp32 channels_last",
    "dense 32x8192 O512 fp32 channels_last",
    "dense 64x512 O512 fp32 channels_last",
    "spectral_norm 512x512x3x3 K4608 fp32 channels_last",
    "spectral_norm 512x256x3x3 K2304 fp32 channels_last",
    "spectral_norm 256x128x3x3 K1152 fp32 channels_last",
    "spectral_norm 128x64x3x3 K576 fp32 channels_last",
    "demodulate_group 512x512 batch 8 fp32 channels_last",
    "demodulate_group 512x512 batch 32 fp32 channels_last",
    "demodulate_group 256x256 batch 8 fp32 channels_last",
    "demodulate_group 256x256 batch 32 fp32 channels_last",
    "demodulate_group 128x128 batch 8 fp32 channels_last",
    "demodulate_group 128x128 batch 32 fp32 channels_last",
    "demodulate_group 64x64 batch 8 fp32 channels_last",
    "demodulate_group 64x64 batch 32 fp32 channels_last",
    "weight_energies 512x512x3x3 fp32 channels_last",
    "weight_energies 256x256x3x3 fp32 channels_last",
    "weight_energies 128x128x3x3 fp32 channels_last",
    "weight_energies 64x64x3x3 fp32 channels_last",
    "dense_group 32x4x512 O512 fp32 channels_last",
    "dense_group 32x4x512 O256 fp32 channels_last",
    "dense_group 32x4x512 O128 fp32 channels_last",
    "dense_group 32x4x512 O64 fp32 channels_last",
    "dense_group 8x4x512 O512 fp32 channels_last",
    "dense_group 8x4x512 O256 fp32 channels_last",
    "dense_group 8x4x512 O128 fp32 channels_last",
    "dense_group 8x4x512 O64 fp32 channels_last",
    "power_iteration 512x512x3x3 K4608 fp32 channels_last",
    "power_iteration 256x256x3x3 K2304 fp32 channels_last",
    "power_iteration 128x128x3x3 K1152 fp32 channels_last",
    "power_iteration 64x64x3x3 K576 fp32 channels_last",
    "conv_transpose2d 32x128x128x128 O64 bf16 channels_last",
    "conv_transpose2d 32x256x64x64 O128 bf16 channels_last",
    "conv_transpose2d 8x128x128x128 O64 bf16 channels_last",
    "conv_transpose2d 8x256x64x64 O128 bf16 channels_last",
    "cuda instance_norm_act 8x64x256x256 bf16 channels_last",
    "cuda instance_norm_act 8x128x128x128 bf16 channels_last",
    "cuda instance_norm_act 8x256x64x64 bf16 channels_last",
    "cuda instance_norm_act 8x512x32x32 bf16 channels_last",
    "instance_norm_act 8x64x256x256 fp32 NCHW",
    "instance_norm_act 8x128x128x128 fp32 NCHW",
    "instance_norm_act 8x256x64x64 fp32 NCHW",
    "instance_norm_act 8x512x32x32 fp32 NCHW",
    "cuda instance_norm_act 8x64x256x256 fp32 NCHW",
    "cuda instance_norm_act 8x128x128x128 fp32 NCHW",
    "cuda instance_norm_act 8x256x64x64 fp32 NCHW",
    "cuda instance_norm_act 8x512x32x32 fp32 NCHW",
    "filter_act_modulate 8x64x257x257 R256 bf16 channels_last",
    "filter_act_modulate 8x128x129x129 R128 bf16 channels_last",
    "filter_act_modulate 8x256x65x65 R64 bf16 channels_last",
    "filter_act_modulate 8x512x33x33 R32 bf16 channels_last",
    "filter_act_modulate 32x64x257x257 R256 bf16 channels_last",
    "filter_act_modulate 32x128x129x129 R128 bf16 channels_last",
    "filter_act_modulate 32x256x65x65 R64 bf16 channels_last",
    "filter_act_modulate 32x512x33x33 R32 bf16 channels_last",
    "bias_act_modulate 8x128x128x128 bf16 channels_last",
    "bias_act_modulate 8x256x64x64 bf16 channels_last",
    "bias_act_modulate 8x512x32x32 bf16 channels_last",
    "bias_act_modulate 32x128x128x128 bf16 channels_last",
    "bias_act_modulate 32x256x64x64 bf16 channels_last",
    "bias_act_modulate 32x512x32x32 bf16 channels_last",
    "to_rgb image 8x64x256x256 bf16 channels_last",
    "to_rgb image 8x128x128x128 bf16 channels_last",
    "to_rgb image 8x256x64x64 bf16 channels_last",
    "to_rgb image 8x512x32x32 bf16 channels_last",
    "to_rgb image 32x64x256x256 bf16 channels_last",
    "to_rgb image 32x128x128x128 bf16 channels_last",
    "to_rgb image 32x256x64x64 bf16 channels_last",
    "to_rgb image 32x512x32x32 bf16 channels_last",
    "demodulate_group_fork 512x512 batch 8 fp32 channels_last",
    "demodulate_group_fork 256x256 batch 8 fp32 channels_last",
    "demodulate_group_fork 128x128 batch 8 fp32 channels_last",
    "demodulate_group_fork 64x64 batch 8 fp32 channels_last",
    "demodulate_group_fork 512x512 batch 32 fp32 channels_last",
    "demodulate_group_fork 256x256 batch 32 fp32 channels_last",
    "demodulate_group_fork 128x128 batch 32 fp32 channels_last",
    "demodulate_group_fork 64x64 batch 32 fp32 channels_last",
    "bias_act_skip 8x128x128x128 I64 bf16 channels_last",
    "bias_act_skip 8x256x64x64 I128 bf16 channels_last",
    "bias_act_skip 8x512x32x32 I256 bf16 channels_last",
    "bias_act_skip 32x128x128x128 I64 bf16 channels_last",
    "bias_act_skip 32x256x64x64 I128 bf16 channels_last",
    "bias_act_skip 32x512x32x32 I256 bf16 channels_last",
    "cuda strided_act 8x64x256x256 fp32 NCHW",
    "cuda coalesced_act 8x64x256x256 fp32 NCHW",
    "cuda divergent 8x64x256x256 fp32 NCHW",
    "cuda predicated 8x64x256x256 fp32 NCHW",
    "cuda shared_sum 8x64x256x256 fp32 NCHW",
    "cuda shuffle_sum 8x64x256x256 fp32 NCHW",
    "cuda scalar_copy 8x64x256x256 bf16 NCHW",
    "cuda vector_copy 8x64x256x256 bf16 NCHW",
    "group_norm_act 32x64x256x256 bf16 channels_last",
    "batch_norm_act 32x64x256x256 bf16 channels_last",
    "group_norm_act 32x128x128x128 bf16 channels_last",
    "batch_norm_act 32x128x128x128 bf16 channels_last",
    "group_norm_act 8x64x256x256 bf16 channels_last",
    "batch_norm_act 8x64x256x256 bf16 channels_last",
    "group_norm_act 32x256x64x64 bf16 channels_last",
    "batch_norm_act 32x256x64x64 bf16 channels_last",
    "group_norm_act 8x128x128x128 bf16 channels_last",
    "batch_norm_act 8x128x128x128 bf16 channels_last",
    "group_norm_act 32x512x32x32 bf16 channels_last",
    "batch_norm_act 32x512x32x32 bf16 channels_last",
    "group_norm_act 8x256x64x64 bf16 channels_last",
    "batch_norm_act 8x256x64x64 bf16 channels_last",
    "group_norm_act 8x512x32x32 bf16 channels_last",
    "batch_norm_act 8x512x32x32 bf16 channels_last",
    "weight_norm 512x512x3x3 fp32 channels_last",
    "weight_norm 256x256x3x3 fp32 channels_last",
    "weight_norm 128x128x3x3 fp32 channels_last",
    "weight_norm 64x64x3x3 fp32 channels_last",
]
DIRECTIONS = ["forward", "backward", "double backward"]
FINGERPRINTS = {
    "bias_act noise scale": "3721f64c",
    "bias_act": "2e62036e",
    "modulate": "da66f8b6",
    "instance_norm_act": "a9082db4",
    "demodulate": "643e7ff9",
    "upfirdn2d after up": "0d7d0d89",
    "upfirdn2d before down": "f69e961c",
    "upfirdn2d down": "07512ed8",
    "upfirdn2d up": "360a64ef",
    "conv2d": "6b0562ca",
    "scale_act": "c801e698",
    "act_filter": "c08a4f2d",
    "filter_act": "8a093c64",
    "bias_act_residual": "d0545b54",
    "fork_upfirdn2d": "bebd4ee1",
    "minibatch_std": "c95b22d0",
    "to_rgb": "bcba597a",
    "from_rgb": "0e877c90",
    "dense": "8a7cef1b",
    "spectral_norm": "ab70e567",
    "demodulate_group": "ba08c587",
    "weight_energies": "b3c3717f",
    "dense_group": "bd801ee2",
    "power_iteration": "86dc3751",
    "conv_transpose2d": "b40f867b",
    "cuda instance_norm_act": "778014ee",
    "filter_act_modulate": "5e887bbd",
    "bias_act_modulate": "469d9eb9",
    "to_rgb image": "2a981072",
    "demodulate_group_fork": "7fb3b395",
    "bias_act_skip": "f9ac06ed",
    "cuda strided_act": "b4723cad",
    "cuda coalesced_act": "fa3a25fb",
    "cuda divergent": "bdbf84c6",
    "cuda predicated": "b3d17c88",
    "cuda shared_sum": "0b5f570d",
    "cuda shuffle_sum": "576dd2e1",
    "cuda scalar_copy": "1748daad",
    "cuda vector_copy": "76df39e5",
    "group_norm_act": "6ab5c35c",
    "batch_norm_act": "e91d5170",
    "weight_norm": "b82ecdec",
}
# Facts on ops that `setup` needs without importing torch: missing directions, and further capabilities.
_PAIRS = [op for op in FINGERPRINTS if op.startswith("cuda ") and op != "cuda instance_norm_act"]
LACKS = {
    "spectral_norm": ("double backward",),
    "weight_energies": ("double backward",),
    **dict.fromkeys(("power_iteration", *_PAIRS), ("backward", "double backward")),
}
NEEDS = dict.fromkeys(("cuda instance_norm_act", *_PAIRS), ("nvcc",))


class Kernel:
    """Our op alone, in a fresh process. Five fresh repeats are its samples."""

    params = (CASES, DIRECTIONS)  # literals, append-only
    param_names = ("case", "direction")
    timeout = 600  # seconds: kernels are compiled first
    version = "1"

    def setup(self, case: str, direction: str) -> None:
        _possible(case, direction)

    def samples_cold(self, case: str, direction: str) -> list[float]:
        """Return the seconds of one call whose inputs are not in the L2 cache."""
        return _measured(case, direction, "cold")

    def samples_hot(self, case: str, direction: str) -> list[float]:
        """Return the seconds of one call on the same buffers again and again."""
        return _measured(case, direction, "hot")


ALTERNATIVES = ["plain", "compile"]  # names of `ladder.studies.kernelbench.bench`


class Alternative:
    """The same op in plain PyTorch or under torch.compile, one at a time, for comparison with ours."""

    params = (CASES, DIRECTIONS, ALTERNATIVES)  # literals, append-only
    param_names = ("case", "direction", "alternative")
    timeout = 600
    version = "1"

    def setup(self, case: str, direction: str, alternative: str) -> None:
        _possible(case, direction)
        if (alternative, direction) == ("compile", "double backward"):
            raise NotImplementedError("torch.compile differentiates once, not twice")

    def samples_cold(self, case: str, direction: str, alternative: str) -> list[float]:
        """Return the seconds of one call whose inputs are not in the L2 cache."""
        return _measured(case, direction, "cold", alternative)

    def samples_hot(self, case: str, direction: str, alternative: str) -> list[float]:
        """Return the seconds of one call on the same buffers again and again."""
        return _measured(case, direction, "hot", alternative)


def _possible(case: str, direction: str) -> None:
    """Check that this machine and the op can do this case.

    Raises:
        NotImplementedError: one of them cannot; in `setup` this means n/a.
    """
    op = max((op for op in FINGERPRINTS if case.startswith(f"{op} ")), key=len)
    able(("cuda", "triton", *NEEDS.get(op, ())))
    if direction in LACKS.get(op, ()):
        raise NotImplementedError(f"{op} has no {direction}")


def _measured(name: str, direction: str, temperature: str, contender: str = "ours") -> list[float]:
    try:
        from ladder.machine import system
        from ladder.studies.kernelbench import bench as kernelbench
        from ladder.studies.kernelbench import cases as kernelcases
    except ModuleNotFoundError as error:
        if error.name != "kernels":
            raise
        raise SkipNotImplemented("this commit has no package kernels") from None
    from ladder.core.locks import device_lock

    case = kernelcases.parse_case(name)
    if kernelcases.hash_entry(case.op) != FINGERPRINTS[case.op]:
        raise SkipNotImplemented(f"{case.op} means something else now: it needs a new name")
    try:
        with device_lock(system.device_key("cuda")):
            seconds = kernelbench.alone(case, direction, temperature, contender)
    except AttributeError as error:
        raise SkipNotImplemented(f"this commit has no such op: {error}") from None
    if used := getattr(sys.modules.get("kernels.choices"), "used", None):
        leave_choices(used())
    return seconds
