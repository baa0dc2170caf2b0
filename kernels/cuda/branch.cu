// A branch that splits a warp, a branch that does not, and arithmetic without a branch.
//
// The 32 threads of a warp issue one instruction together. A branch that splits them makes the warp run one side with
// the others masked off, then the other side. It takes both sides' time. If all 32 agree (odd and even warps instead of
// odd and even threads), each warp runs its own side only. If the sides differ by a number, choosing the number costs
// one instruction and no branch. The compiler turns a short branch into that by itself.
//
// Odd threads (or warps) compute v = v * rate + shift, even threads v = shift - v * rate, `steps` times. Few steps are
// bound by memory, and arithmetic is hidden. With hundreds of steps the two sides show.

#include "common.cuh"

template <int GROUP> __device__ bool is_odd(int64_t i) { return (i / GROUP) % 2; }

template <int GROUP>
__global__ void BOUNDS divergent_kernel(const float* x, float* y, int64_t n, float rate, float shift, int steps) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  if (is_odd<GROUP>(i)) {
#pragma unroll 1
    for (int step = 0; step < steps; step++) v = __fmaf_rn(v, rate, shift);
  } else {
#pragma unroll 1
    for (int step = 0; step < steps; step++) v = __fmaf_rn(v, -rate, shift);
  }
  y[i] = v;
}

template <int GROUP>
__global__ void BOUNDS predicated_kernel(const float* x, float* y, int64_t n, float rate, float shift, int steps) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  const float chosen = is_odd<GROUP>(i) ? rate : -rate;
#pragma unroll 1
  for (int step = 0; step < steps; step++) v = __fmaf_rn(v, chosen, shift);
  y[i] = v;
}

using Branch = void (*)(const float*, float*, int64_t, float, float, int);

static int run(
    Branch kernel, const void* x, void* y, int64_t n, double rate, double shift, int64_t steps, int64_t threads,
    cudaStream_t stream) {
  kernel<<<(n + threads - 1) / threads, threads, 0, stream>>>(
      static_cast<const float*>(x), static_cast<float*>(y), n, float(rate), float(shift), int(steps));
  return cudaGetLastError();
}

// group: 1 for odd and even threads, 32 for odd and even warps
extern "C" int divergent(
    const void* x, void* y, int64_t n, double rate, double shift, int64_t steps, int64_t group, int64_t threads,
    cudaStream_t stream) {
  return run(group == 1 ? divergent_kernel<1> : divergent_kernel<32>, x, y, n, rate, shift, steps, threads, stream);
}

extern "C" int predicated(
    const void* x, void* y, int64_t n, double rate, double shift, int64_t steps, int64_t group, int64_t threads,
    cudaStream_t stream) {
  return run(group == 1 ? predicated_kernel<1> : predicated_kernel<32>, x, y, n, rate, shift, steps, threads, stream);
}

extern "C" int branch_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  static const Kernel table[] = {
      {"divergent_kernel<thread>", (const void*)divergent_kernel<1>},
      {"divergent_kernel<warp>", (const void*)divergent_kernel<32>},
      {"predicated_kernel<thread>", (const void*)predicated_kernel<1>},
      {"predicated_kernel<warp>", (const void*)predicated_kernel<32>},
  };
  return describe(table, 4, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
