// Leaky ReLU in two orders of access: neighbouring threads far apart in memory (strided) or side by side (coalesced).
//
// A warp's 32 loads become as many transactions as they touch 32-byte sectors of memory. Side by side, 32 floats are 4
// sectors, all of them used. In NCHW memory, neighbouring channels lie H * W elements apart: 32 sectors. One element of
// each is used, unless a cache still holds the sector for a later access.
//
// The two kernels differ in one line, the address. Both run on any number of blocks a sample (gridDim.x; gridDim.y is
// the sample). One block a sample, a thread for each channel, leaves most multiprocessors idle. That cost has nothing
// to do with coalescing.

#include "common.cuh"

template <typename A> __device__ A leaky_relu(A v, A slope) { return v > 0 ? v : v * slope; }

template <typename T>
__global__ void BOUNDS strided_act_kernel(const T* x, T* y, wide_t<T> slope, uint32_t channels, uint32_t pixels) {
  const int64_t sample = int64_t(blockIdx.y) * channels * pixels;
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  uint32_t c = first % channels, p = first / channels;  // channels are the inner loop, spread over the threads
  const uint32_t step_c = step % channels, step_p = step / channels;
  while (p < pixels) {
    const int64_t at = sample + int64_t(c) * pixels + p;
    y[at] = narrow<T>(leaky_relu(widen(x[at]), slope));
    c += step_c;
    p += step_p;
    if (c >= channels) { c -= channels; p++; }
  }
}

template <typename T>
__global__ void BOUNDS coalesced_act_kernel(const T* x, T* y, wide_t<T> slope, uint32_t channels, uint32_t pixels) {
  const int64_t sample = int64_t(blockIdx.y) * channels * pixels;
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  uint32_t c = first / pixels, p = first % pixels;  // pixels are the inner loop, spread over the threads
  const uint32_t step_c = step / pixels, step_p = step % pixels;
  while (c < channels) {
    const int64_t at = sample + int64_t(c) * pixels + p;
    y[at] = narrow<T>(leaky_relu(widen(x[at]), slope));
    c += step_c;
    p += step_p;
    if (p >= pixels) { p -= pixels; c++; }
  }
}

extern "C" int strided_act(
    const void* x, void* y, double slope, int64_t samples, int64_t channels, int64_t pixels, int64_t blocks,
    int64_t threads, int64_t dtype, cudaStream_t stream) {
  return by_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    strided_act_kernel<T><<<dim3(blocks, samples), threads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), static_cast<wide_t<T>>(slope), channels, pixels);
    return static_cast<int>(cudaGetLastError());
  });
}

extern "C" int coalesced_act(
    const void* x, void* y, double slope, int64_t samples, int64_t channels, int64_t pixels, int64_t blocks,
    int64_t threads, int64_t dtype, cudaStream_t stream) {
  return by_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    coalesced_act_kernel<T><<<dim3(blocks, samples), threads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), static_cast<wide_t<T>>(slope), channels, pixels);
    return static_cast<int>(cudaGetLastError());
  });
}

extern "C" int activation_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  static const Kernel table[] = {
      {"strided_act_kernel<float>", (const void*)strided_act_kernel<float>},
      {"strided_act_kernel<bf16>", (const void*)strided_act_kernel<__nv_bfloat16>},
      {"coalesced_act_kernel<float>", (const void*)coalesced_act_kernel<float>},
      {"coalesced_act_kernel<bf16>", (const void*)coalesced_act_kernel<__nv_bfloat16>},
  };
  return describe(table, 4, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
