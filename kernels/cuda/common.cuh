// Shared code of the sources: element types, vectors of them, sums over a block, and the choice of an instance by
// dtype.
//
// Nothing here knows PyTorch. PyTorch's builder switches the operators of __half and __nv_bfloat16 off, so they are
// converted by name. Everything is computed in float, in double for double.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#ifndef MAX_THREADS
#define MAX_THREADS 1024
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
// The compiler may give a thread 65536 / (MAX_THREADS * MIN_BLOCKS) registers and must not take more.
#define BOUNDS __launch_bounds__(MAX_THREADS, MIN_BLOCKS)

// ---- types -------------------------------------------------------------------------------------------------------

template <typename T> struct Wide { using type = float; };
template <> struct Wide<double> { using type = double; };
template <typename T> using wide_t = typename Wide<T>::type;  // the type of sums of T

__device__ inline float widen(float v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline double widen(double v) { return v; }

template <typename T> __device__ inline T narrow(wide_t<T> v);
template <> __device__ inline float narrow<float>(float v) { return v; }
template <> __device__ inline __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ inline double narrow<double>(double v) { return v; }

__device__ inline float inverse_root(float v) { return rsqrtf(v); }
__device__ inline double inverse_root(double v) { return rsqrt(v); }

// A division with an error of two units in the last place: an exact division is many instructions.
__device__ inline float ratio(float a, float b) { return __fdividef(a, b); }
__device__ inline double ratio(double a, double b) { return a / b; }

// N neighbours, read or written by one instruction where they are 16 bytes or less.
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector { T at[N]; };

template <int N, typename T> __device__ inline Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <int N, typename T> __device__ inline void store(T* to, const Vector<T, N>& v) {
  *reinterpret_cast<Vector<T, N>*>(to) = v;
}

// use(i, load(i)) for i = first, first + step, ... before end, with BATCH loads on their way before the first is used.
// A loop that loads, computes and tests whether to go on would wait for memory each time.
template <int BATCH, typename Load, typename Use>
__device__ inline void in_batches(int first, int end, int step, Load load, Use use) {
  for (int i = first; i < end; i += BATCH * step) {
    decltype(load(i)) loaded[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) loaded[b] = load(i + b * step < end ? i + b * step : i);  // i again at the end
#pragma unroll
    for (int b = 0; b < BATCH; b++)
      if (i + b * step < end) use(i + b * step, loaded[b]);
  }
}

// ---- sums over a block -------------------------------------------------------------------------------------------

// Mean and sum of squared deviations of n numbers, joined by Chan's rule: a mean far from zero costs no digits.
template <typename A> struct Moments {
  A n, mean, m2;
  __device__ void join(const Moments& other) {
    if (other.n == 0) return;
    if (n == 0) { *this = other; return; }
    const A delta = other.mean - mean, share = ratio(other.n, n + other.n);
    mean += delta * share;
    m2 += other.m2 + delta * delta * n * share;
    n += other.n;
  }
  __device__ Moments from_lane(int offset) const {
    return {__shfl_down_sync(~0u, n, offset), __shfl_down_sync(~0u, mean, offset), __shfl_down_sync(~0u, m2, offset)};
  }
};

// Several plain sums at once.
template <typename A, int N> struct Sums {
  A at[N];
  __device__ void join(const Sums& other) {
#pragma unroll
    for (int i = 0; i < N; i++) at[i] += other.at[i];
  }
  __device__ Sums from_lane(int offset) const {
    Sums moved;
#pragma unroll
    for (int i = 0; i < N; i++) moved.at[i] = __shfl_down_sync(~0u, at[i], offset);
    return moved;
  }
};

// A warp's total, in its lane 0.
template <typename S> __device__ S over_warp(S mine) {
  for (int offset = 16; offset; offset /= 2) mine.join(mine.from_lane(offset));
  return mine;
}

// The block's total, for every thread: shuffles within each warp, then the first warp joins the warps' totals, in a
// fixed order. Whole warps only. `none` is the total of nothing.
template <typename S> __device__ S over_block(S mine, S none) {
  __shared__ S of_warp[32], total;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  mine = over_warp(mine);
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const S all = over_warp(lane < blockDim.x / 32 ? of_warp[lane] : none);
    if (lane == 0) total = all;
  }
  __syncthreads();
  return total;
}

// ---- on the host -------------------------------------------------------------------------------------------------

template <typename T> struct Tag { using type = T; };

// f(Tag<T>{}, Tag<O>{}) for the dtypes of an input and its result: the same, or autocast's dtype for float.
template <typename F> int by_dtypes(int64_t in, int64_t out, F f) {
  if (in == 0 && out == 0) return f(Tag<float>{}, Tag<float>{});
  if (in == 0 && out == 1) return f(Tag<float>{}, Tag<__half>{});
  if (in == 0 && out == 2) return f(Tag<float>{}, Tag<__nv_bfloat16>{});
  if (in == 1 && out == 1) return f(Tag<__half>{}, Tag<__half>{});
  if (in == 2 && out == 2) return f(Tag<__nv_bfloat16>{}, Tag<__nv_bfloat16>{});
  if (in == 3 && out == 3) return f(Tag<double>{}, Tag<double>{});
  return cudaErrorInvalidValue;
}

template <typename F> int by_dtype(int64_t dtype, F f) {
  return by_dtypes(dtype, dtype, [&](auto in, auto) { return f(in); });
}

// Rows of a table that each source exports: a kernel's name and its address, for registers, spills and occupancy.
struct Kernel { const char* name; const void* address; };
int describe(
    const Kernel* table, int64_t rows, int64_t row, int64_t block, int64_t dynamic, char* name, int64_t* out);
