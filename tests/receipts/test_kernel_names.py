"""Names of kernels of an H100: the spellings of PyTorch's profiler and of Nsight Compute have one label."""

from __future__ import annotations

import pytest

from ladder.receipts import kernel_names

NOCAST = "at::native::gpu_kernel_impl_nocast"
BITS = "at::native::binary_internal"
# label -> (the profiler's spelling, Nsight Compute's)
SPELLINGS = {
    "cutlass_75_bf16_s1688gemm_bf16_64x64_nt_align1": (
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1>"
        "(cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1::Params)",
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1>(T1::Params)",
    ),
    "elementwise_kernel direct_copy bf16": (
        f"void at::native::elementwise_kernel<128, 4, {NOCAST}<at::native::direct_copy_kernel_cuda"
        "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::"
        "{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
        f"void at::native::elementwise_kernel<(int)128, (int)4, void {NOCAST}<at::native::direct_copy_kernel_cuda"
        "(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]::"
        "operator ()() const::[lambda(c10::BFloat16) (instance 1)]>(at::TensorIteratorBase &)::"
        "[lambda(int) (instance 1)]>(int, T3)",
    ),
    "elementwise_kernel Div fp32": (
        f"void at::native::elementwise_kernel<128, 2, {NOCAST}<at::native::BinaryFunctor<float, float, float,"
        f" {BITS}::DivFunctor<float> > >(at::TensorIteratorBase&)::{{lambda(int)#1}}>(int)",
        f"void at::native::elementwise_kernel<(int)128, (int)2, void {NOCAST}<at::native::BinaryFunctor<float, float,"
        f" float, {BITS}::DivFunctor<float>>>(at::TensorIteratorBase &)::[lambda(int) (instance 1)]>(int, T3)",
    ),
    "vectorized_elementwise_kernel Mul bf16": (  # computes in FP32 with tensors of BF16
        "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16,"
        f" c10::BFloat16, {BITS}::MulFunctor<float> >, std::array<char*, 2ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::AUnaryFunctor<c10::BFloat16,"
        f" c10::BFloat16, c10::BFloat16, {BITS}::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2)",
    ),
    "vectorized_elementwise_kernel leaky_relu_backward fp32": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
        "leaky_relu_backward_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda()#1}::operator()() const::"
        "{lambda(float, float)#1}, std::array<char*, 3ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::leaky_relu_backward_kernel"
        "(at::TensorIteratorBase &, const c10::Scalar &)::[lambda() (instance 1)]::operator ()() const::"
        "[lambda(float, float) (instance 1)], std::array<char *, (unsigned long)3>>(int, T2, T3)",
    ),
    "multi_tensor_apply_kernel BinaryOpScalar fp32": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, float>(int)",
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)1>,"
        " at::native::<unnamed>::BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>, float>(T1, T2, T3...)",
    ),
    "reduce_kernel sum bf16": (
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
        "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::"
        "{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4, 8> >(int)",
        "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, at::native::"
        "func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator ()"
        "(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, unsigned int, c10::BFloat16>>(T3)",
    ),
    "implicit_convolve_sgemm bf16": (
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)",
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, (int)1024, (int)6, (int)7, (bool)0>(int, T1)",
    ),
    "conv2d_grouped_direct_kernel": (
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, 1, 0, int, float, __nv_bfloat16>(int)",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<(bool)0, (bool)1, (int)1, int, float, __nv_bfloat16>(T5)",
    ),
    "gemvx::kernel": (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, false>(int)",
        "void internal::gemvx::kernel<int, int, float, (bool)0>(T13)",
    ),
    "sm90_xmma_wgrad_indexed_bf16_nhwc_128x128x64": (
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1"
        "_g1_execute_segment_k_off_kernel__5x_cudnn",
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpg",  # cut
    ),
    "sm80_xmma_gemm_f32_nt_n_32x32x8": (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_execute_kernel__5x_cublas",
    ),
    "bias_act_grad_kernel": ("bias_act_grad_kernel",),
    "aten::convolution_backward": ("aten::convolution_backward",),  # an operator of a CPU
}  # fmt: skip


@pytest.mark.parametrize(
    ("label", "spelling"), [(k, each) for k, names in SPELLINGS.items() for each in names]
)
def test_each_spelling_of_a_kernel_has_its_label(label: str, spelling: str) -> None:
    assert kernel_names.name_label(spelling) == label == kernel_names.name_stored(spelling)
    assert kernel_names.name_label(label) == label and len(label) <= kernel_names.LONGEST
    assert kernel_names.name_function(spelling) in spelling and kernel_names.find_word(spelling) in spelling


def test_long_names_keep_their_end() -> None:
    first, second = (kernel_names.name_label(f"{'long_' * 20}{end}") for end in ("forward", "backward"))
    assert first != second and max(len(first), len(second)) <= kernel_names.LONGEST


def test_a_result_stores_names_whole_and_those_of_copies_without_their_memory() -> None:
    tiles = [
        f"sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{tile}_stage3_kernel__5x_cudnn"
        for tile in ("128x128x32", "256x64x32")
    ]
    assert [kernel_names.name_stored(name) for name in tiles] == [
        "sm80_xmma_fprop_bf16_nhwc_128x128x32",
        "sm80_xmma_fprop_bf16_nhwc_256x64x32",
    ]
    assert kernel_names.name_stored("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD"
    assert kernel_names.name_stored("Memset (Device)") == "Memset"
    lengths = [len(kernel_names.name_stored("k" * length)) for length in (80, 200)]
    assert lengths == [80, kernel_names.KEPT]
