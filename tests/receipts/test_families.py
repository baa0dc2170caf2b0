"""Families of kernels, by names as traces of cuDNN 9, cuBLAS, PyTorch and Triton show them."""

import json
from pathlib import Path

import pytest

from ladder.receipts import categories
from ladder.receipts import kernel_families as families
from tests.receipts.test_kernel_names import SPELLINGS

DATA = Path(__file__).resolve().parents[1] / "data" / "results" / "ladder"
RUN = DATA / "nvidia-h100-80gb-hbm3" / "article-article-20261125T180506Z.json"
XMMA = "_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel"
AT, ANON = "void at::native::", "void at::native::(anonymous namespace)::"
FAMILY = {  # names of an H100 unless noted
    families.FORWARD: [
        f"sm90_xmma_fprop_implicit_gemm{XMMA}__5x_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>"
        "(cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4::Params)",
        "_5x_cudnn_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    ],
    families.DGRAD: [
        f"sm90_xmma_dgrad_implicit_gemm{XMMA}__5x_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_align8>"
        "(cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_align8::Params)",
    ],
    families.WGRAD: [
        "void cudnn::cnn::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>(int, int, int, float const*)",
    ],
    families.UNTOLD: [
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x32_stage5_execute_kernel__5x_cudnn",
        "cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace(unsigned int)",
        "void DSE::regular_fft_clip<2, 256, 4, float>(float2*)",
    ],
    families.DEPTHWISE: [
        "void dgrad2d_c1_k1_nhwc_kernel<__nv_bfloat16, float, 4, 4, 1, 3, true>",
        "void upfirdn2d_kernel_small<c10::Half, 1, 1, 4, 4, 64, 16>(p)",  # NVIDIA's own, of `ladder upstream`
    ],
    families.COPY: [
        "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)2>"
        "(cudnn::ops::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, __nv_bfloat16*)",
        "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>",
        "void foldedNhwcToNhwcKernel<float, float, float>(cudnn::FoldedParams)",  # of cuDNN 9.19
        "void cudnn::engines_precompiled::nchwToFoldedNhwcKernel<__half, float>",
        AT + "vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>",
        ANON + "CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 4, 64>",
    ],
    families.NORM: [
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct)",
        AT + "batch_norm_backward_kernel<float, float, float, int>",
    ],
    families.MATMUL: [
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
        "nvjet_sm90_tst_64x512_64x2_1x2_h_bz_coopB_NNT",
        "ampere_sgemm_32x32_sliced1x4_nn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false>",
    ],
    families.ELEMENTWISE: [
        AT + "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >",
        ANON + "indexSelectLargeIndex<float, long, 2>",
        AT + "vectorized_gather_kernel<16, long>(char*, char*)",
        "void bias_act_kernel<float, 3>(bias_act_kernel_params)",  # NVIDIA's own
    ],
    families.REDUCTION: [
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::Policy800>",
    ],
    families.OPTIMIZER: [
        ANON + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >",
    ],
    families.RANDOM: [
        ANON + "distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::"
        "normal_and_transform<float, float>(at::TensorIteratorBase&, at::CUDAGeneratorImpl*)>"
    ],
    families.TRANSFER: [
        "Memcpy HtoD (Pinned -> Device)", "Memset (Device)", "memset32", "memset32_post", "memcpy32_post",
    ],
    families.COMMUNICATION: ["Memcpy PtoP (Device -> Device)"],
    families.INDUCTOR: ["triton_poi_fused__to_copy_add_leaky_relu_mul_3", "triton_unk_fused_add_mul_4"],
    families.OURS + "bias_act_grad_kernel": ["bias_act_grad_kernel"],
    families.OURS_CPP + "planes_forward_kernel": [
        "void planes_forward_kernel<__nv_bfloat16, 8>(__nv_bfloat16 const*)"
    ],
    families.OURS_CPP + "pixels_sums_kernel": ["pixels_sums_kernel"],
    families.OTHER: ["flash_fwd_kernel"],
}  # fmt: skip
SPELLED = [  # of the spellings in `test_kernel_names.py`, in order
    *[families.MATMUL, families.COPY], *[families.ELEMENTWISE] * 3, families.OPTIMIZER, families.REDUCTION,
    *[families.SGEMM, families.DEPTHWISE, families.MATMUL, families.WGRAD, families.MATMUL],
]  # fmt: skip
NAMES = [(family, name) for family, names in FAMILY.items() for name in names]
NAMES += [(family, names[0]) for family, names in zip(SPELLED, SPELLINGS.values(), strict=False)]


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_names_of_real_kernels_are_told_apart(family, name):
    assert families.name_family(name) == family


def test_every_kernel_in_cuda_is_known_by_its_name_and_has_a_category():
    own = families.own_cpp_kernels()
    assert {"planes_backward_kernel", "pixels_join_kernel", "coalesced_act_kernel"} <= own
    assert {"modulate_grad_kernel", "instance_norm_act_kernel"} <= families.own_kernels() - own
    for name in own:
        found = categories.name_category(families.name_family(f"void {name}<float>(float const*)"))
        assert found.startswith(categories.FUSED)
        assert ("normalization" in found) is name.startswith(("planes", "pixels"))


def test_every_heavy_kernel_of_a_run_on_an_h100_has_a_family():
    """A stored run has shortened names, and they are told apart all the same."""
    rungs = [rung for rung in json.loads(RUN.read_text())["rungs"] if rung.get("profile")]
    names = {row["name"] for rung in rungs for row in rung["profile"]["kernels"]}
    named = [name for name in names if not name.endswith(" other kernels")]
    assert len(named) > 30
    assert [name for name in named if families.name_family(name) == families.OTHER] == []


def test_times_are_added_up_for_each_family_and_divided_by_the_steps():
    wait, fprop = "Stream Wait Event", "sm90_xmma_fprop_implicit_gemm_x__5x_cudnn"
    events = [
        ("cudaLaunchKernel", False, 0, 0, 9_000_000),
        (wait, True, 7, 0, 9_000_000),
        ("bias_act_kernel", True, 7, 0, 2_000),
        (fprop, True, 7, 2_000, 34_000),
        (fprop, True, 7, 40_000, 72_000),
        ("Memcpy HtoD (Pinned -> Device)", True, 8, 0, 16_000),
    ]
    rows = families.derive_shares(events, 16)
    assert [(row["family"], row["us"], row["kernels"]) for row in rows] == [
        (families.FORWARD, 4.0, 0.125),
        (families.TRANSFER, 1.0, 0.0625),
        (families.OURS + "bias_act_kernel", 0.125, 0.0625),
    ]
    assert rows[0]["heaviest"] == "sm90_xmma_fprop_x__5x_cudnn"
