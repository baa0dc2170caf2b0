"""Families of kernels, by names as traces of cuDNN 9, cuBLAS, PyTorch and Triton show them."""

import json
from pathlib import Path

import pytest

from ladder.receipts import categories, kernel_families, kernel_names

DATA = Path(__file__).resolve().parents[1] / "data" / "results" / "ladder"
RUN = DATA / "nvidia-h100-80gb-hbm3" / "article-article-20261125T180506Z.json"
XMMA = "_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel"
AT = "void at::native::"
NAMES = {
    f"sm90_xmma_fprop_implicit_gemm{XMMA}__5x_cudnn": kernel_families.FORWARD,
    f"sm90_xmma_dgrad_implicit_gemm{XMMA}__5x_cudnn": kernel_families.DGRAD,
    "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_warpsize1x1x4_g1"
    "_tensor16x8x16_execute_kernel__5x_cudnn": kernel_families.WGRAD,
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_align8>"
    "(cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_align8::Params)": kernel_families.DGRAD,
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>"
    "(cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4::Params)": kernel_families.FORWARD,
    "void cudnn::cnn::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>(int, int, int, float const*)": (
        kernel_families.WGRAD
    ),
    "_5x_cudnn_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": kernel_families.FORWARD,
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x32_stage5_execute_kernel__5x_cudnn": (
        kernel_families.UNTOLD
    ),
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(int, int, int, float const*"
    ", int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float)": kernel_families.SGEMM,
    "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, __nv_bfloat16>": (
        kernel_families.DEPTHWISE
    ),
    "void dgrad2d_c1_k1_nhwc_kernel<__nv_bfloat16, float, 4, 4, 1, 3, true>": kernel_families.DEPTHWISE,
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)2>"
    "(cudnn::ops::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, __nv_bfloat16*)": kernel_families.COPY,
    "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>": kernel_families.COPY,
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct)": kernel_families.NORM,
    AT + "batch_norm_backward_kernel<float, float, float, int>": kernel_families.NORM,
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN": kernel_families.MATMUL,
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel"
    "__51_cublas": kernel_families.MATMUL,
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x3_nn_align4>(cutlass_80_tensorop::Params)": (
        kernel_families.MATMUL
    ),
    "ampere_sgemm_32x32_sliced1x4_nn": kernel_families.MATMUL,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false>": kernel_families.MATMUL,
    AT
    + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)": kernel_families.ELEMENTWISE,
    AT + "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >": (
        kernel_families.ELEMENTWISE
    ),
    AT + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::BinaryFunctor<c10::BFloat16, "
    "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > > >": kernel_families.ELEMENTWISE,
    AT
    + "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>": (
        kernel_families.COPY
    ),
    AT + "vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>": (
        kernel_families.COPY
    ),
    AT
    + "(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 4, 64>": (
        kernel_families.COPY
    ),
    AT + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::"
    "sum_functor<float, float, float>::operator()(at::TensorIterator&)> > >": kernel_families.REDUCTION,
    AT
    + "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<4>, "
    "at::native::(anonymous namespace)::PointwiseOpScalarListFunctor<float, 4, 3, 3> >": kernel_families.OPTIMIZER,
    AT + "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >": kernel_families.OPTIMIZER,
    AT
    + "(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::"
    "normal_and_transform<float, float>(at::TensorIteratorBase&, at::CUDAGeneratorImpl*)>": kernel_families.RANDOM,
    "Memcpy HtoD (Pinned -> Device)": kernel_families.TRANSFER,
    "Memset (Device)": kernel_families.TRANSFER,
    "bias_act_grad_kernel": kernel_families.OURS + "bias_act_grad_kernel",
    "modulate_kernel": kernel_families.OURS + "modulate_kernel",
    "triton_poi_fused__to_copy_add_leaky_relu_mul_3": kernel_families.INDUCTOR,
    "triton_red_fused_mul_sum_12": kernel_families.INDUCTOR,
    # As an H100 shows them: a graph replays memsets as kernels, and cuDNN 9.19 folds its layouts.
    "memset32": kernel_families.TRANSFER,
    "memset32_post": kernel_families.TRANSFER,
    "memcpy32_post": kernel_families.TRANSFER,
    "nvjet_sm90_tst_64x512_64x2_1x2_h_bz_coopB_NNT": kernel_families.MATMUL,
    "Memcpy PtoP (Device -> Device)": kernel_families.COMMUNICATION,
    "void foldedNhwcToNhwcKernel<float, float, float>(cudnn::FoldedParams)": kernel_families.COPY,
    "void cudnn::engines_precompiled::nchwToFoldedNhwcKernel<__half, float>": kernel_families.COPY,
    "cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace(unsigned int)": kernel_families.UNTOLD,
    "void DSE::regular_fft_clip<2, 256, 4, float>(float2*)": kernel_families.UNTOLD,
    "triton_unk_fused_add_mul_4": kernel_families.INDUCTOR,
    AT + "(anonymous namespace)::indexSelectLargeIndex<float, long, 2>": kernel_families.ELEMENTWISE,
    AT + "vectorized_gather_kernel<16, long>(char*, char*)": kernel_families.ELEMENTWISE,
    "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::Policy800>": kernel_families.REDUCTION,
    # NVIDIA's own, which `ladder upstream` runs
    "void bias_act_kernel<float, 3>(bias_act_kernel_params)": kernel_families.ELEMENTWISE,
    "void upfirdn2d_kernel_small<c10::Half, 1, 1, 4, 4, 64, 16>(p)": kernel_families.DEPTHWISE,
    # ours in CUDA C++: of the rung cuda_norm, and of two widths
    "void planes_forward_kernel<__nv_bfloat16, 8>(__nv_bfloat16 const*)": (
        kernel_families.OURS_CPP + "planes_forward_kernel"
    ),
    "pixels_sums_kernel": kernel_families.OURS_CPP + "pixels_sums_kernel",
    "flash_fwd_kernel": kernel_families.OTHER,
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_of_real_kernels_are_told_apart(name, expected):
    assert kernel_families.family(name) == expected


def test_every_kernel_of_ours_is_known_by_its_name():
    assert {
        "bias_act_kernel",
        "modulate_grad_kernel",
        "instance_norm_act_kernel",
    } <= kernel_families.own_kernels()


def test_every_kernel_in_cuda_is_known_by_its_name_and_has_a_category():
    own = kernel_families.own_cpp_kernels()
    assert {"planes_backward_kernel", "pixels_join_kernel", "coalesced_act_kernel"} <= own
    assert not own & kernel_families.own_kernels()
    for name in own:
        found = categories.category(kernel_families.family(f"void {name}<float>(float const*)"))
        assert found.startswith(categories.FUSED)
        assert ("normalization" in found) is name.startswith(("planes", "pixels"))


def test_every_heavy_kernel_of_a_run_on_an_h100_has_a_family():
    """A stored run has shortened names, and they are told apart all the same."""
    rungs = [rung for rung in json.loads(RUN.read_text())["rungs"] if rung.get("profile")]
    names = {row["name"] for rung in rungs for row in rung["profile"]["kernels"]}
    named = [name for name in names if not name.endswith(" other kernels")]
    assert len(named) > 30
    assert [name for name in named if kernel_families.family(name) == kernel_families.OTHER] == []


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
    rows = kernel_families.shares(events, 16)
    assert [(row["family"], row["us"], row["kernels"]) for row in rows] == [
        (kernel_families.FORWARD, 4.0, 0.125),
        (kernel_families.TRANSFER, 1.0, 0.0625),
        (kernel_families.OURS + "bias_act_kernel", 0.125, 0.0625),
    ]
    assert rows[0]["heaviest"] == "sm90_xmma_fprop_x__5x_cudnn"


def test_the_heaviest_kernel_is_named_by_what_it_does():
    name = (
        AT
        + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
    )
    assert kernel_names.stored(name) == "vectorized_elementwise_kernel add fp32"
