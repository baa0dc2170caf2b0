// Fused instance norm and leaky ReLU in channels_last memory: x is read twice, for the statistics and to apply them.
//
// An access of 32 bytes brings many planes here, more than a multiprocessor could hold until it knows their statistics.
// So there are three kernels. Each block finds the moments of its pixels. One warp for each map joins them (in a fixed
// order, without atomics). The last kernel reads x again. It goes through memory backwards: the last reads of the first
// kernel are still in the L2 cache.

#include "pixels.cuh"

// means, m2s: [samples, channels, chunks]
template <typename T, int N>
__global__ void NARROW_BOUNDS pixels_moments_kernel(
    const T* __restrict__ x, wide_t<T>* means, wide_t<T>* m2s, Layer<wide_t<T>> layer, int lanes, int per_chunk) {
  using A = wide_t<T>;
  const Place at(N, lanes, layer.channels, layer.pixels, per_chunk, false);
  const A strength = layer.noise ? *layer.strength : A(0);
  A shift[N], sum[N], squares[N];
#pragma unroll
  for (int k = 0; k < N; k++) shift[k] = sum[k] = squares[k] = 0;
  if (at.inside && at.p < at.end) {
    const Pixel<T, N> first = pixel<N>(x, layer, at, at.p);
#pragma unroll
    for (int k = 0; k < N; k++) shift[k] = first.at(k, strength);
    auto read = [&](int p) { return pixel<N>(x, layer, at, p); };
    in_batches<4>(at.p, at.end, at.rows, read, [&](int, const Pixel<T, N>& one) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        const A d = one.at(k, strength) - shift[k];
        sum[k] += d;
        squares[k] += d * d;
      }
    });
  }
  const int width = lanes * N;
  A* of_mean = reinterpret_cast<A*>(rows_of_block);  // [rows, width]
  A* of_m2 = of_mean + at.rows * width;
  A* origin = of_m2 + at.rows * width;  // [width]: row 0's shifts; moments are joined as seen from there
#pragma unroll
  for (int k = 0; k < N; k++)
    if (at.row == 0) origin[at.lane * N + k] = shift[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; k++) {
    const A from = shift[k] - origin[at.lane * N + k];
    const Moments<A> mine = moments(at.count(at.row), from, sum[k], squares[k]);
    of_mean[at.row * width + at.lane * N + k] = mine.mean;
    of_m2[at.row * width + at.lane * N + k] = mine.m2;
  }
  __syncthreads();
  for (int column = threadIdx.x; column < width; column += blockDim.x) {
    const int c = blockIdx.y * width + column;
    if (c >= layer.channels) continue;
    Moments<A> all = {0, 0, 0};
    for (int r = 0; r < at.rows; r++)
      all.join({A(at.count(r)), of_mean[r * width + column], of_m2[r * width + column]});
    const int64_t to = (at.sample * layer.channels + c) * gridDim.x + at.chunk;
    means[to] = origin[column] + all.mean;
    m2s[to] = all.m2;
  }
}

// One warp for each map: mean and 1 / sqrt(var + eps) from the moments of its chunks.
template <typename A>
__global__ void NARROW_BOUNDS pixels_join_kernel(
    const A* means, const A* m2s, A* mean, A* rstd, int64_t maps, int chunks, int per_chunk, int pixels, A eps) {
  const int64_t map = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (map >= maps) return;  // whole warps
  Moments<A> all = {0, 0, 0};
  const A origin = means[map * chunks];
  for (int i = threadIdx.x % 32; i < chunks; i += 32) {
    const int n = min(per_chunk, pixels - i * per_chunk);
    all.join({A(n), means[map * chunks + i] - origin, m2s[map * chunks + i]});
  }
  all = over_warp(all);
  if (threadIdx.x % 32) return;
  mean[map] = origin + all.mean;
  rstd[map] = inverse_root(all.m2 / pixels + eps);
}

template <typename T, typename O, int N>
__global__ void NARROW_BOUNDS pixels_forward_kernel(
    const T* __restrict__ x, O* __restrict__ y, const wide_t<T>* __restrict__ means,
    const wide_t<T>* __restrict__ rstds, Layer<wide_t<T>> layer, int lanes, int per_chunk) {
  using A = wide_t<T>;
  const Place at(N, lanes, layer.channels, layer.pixels, per_chunk, true);
  if (!at.inside) return;
  const A strength = layer.noise ? *layer.strength : A(0);
  const Maps<A, N> of(means, rstds, layer, at.sample * layer.channels + at.c);
  auto read = [&](int p) { return pixel<N>(x, layer, at, p); };
  in_batches<4>(at.p, at.end, at.rows, read, [&](int p, const Pixel<T, N>& one) {
    Vector<O, N> out;
#pragma unroll
    for (int k = 0; k < N; k++)
      out.at[k] = narrow<O>(activate((one.at(k, strength) - of.mean[k]) * of.factor[k] + of.bias[k], layer));
    store<N>(y + (at.sample * layer.pixels + p) * layer.channels + at.c, out);
  });
}

// ---- on the host -------------------------------------------------------------------------------------------------

// vector: 1 where all tensors begin at multiples of 16 bytes and channels are whole vectors, else 0
extern "C" int pixels_moments(
    const void* x, void* means, void* m2s, void* mean, void* rstd, const void* noise, const void* strength,
    int64_t noise_stride, double eps, int64_t samples, int64_t channels, int64_t pixels, int64_t vector,
    int64_t lanes, int64_t per_chunk, int64_t threads, int64_t in, cudaStream_t stream) {
  return by_dtype(in, [&](auto from) -> int {
    using T = typename decltype(from)::type;
    using A = wide_t<T>;
    const int N = vector ? 16 / sizeof(T) : 1;
    const auto kernel = vector ? pixels_moments_kernel<T, 16 / sizeof(T)> : pixels_moments_kernel<T, 1>;
    const dim3 blocks = grid(samples, channels, pixels, N, lanes, per_chunk);
    kernel<<<blocks, threads, (threads * 2 + lanes) * N * sizeof(A), stream>>>(
        static_cast<const T*>(x), static_cast<A*>(means), static_cast<A*>(m2s),
        layer_of<A>(noise, strength, nullptr, nullptr, noise_stride, 0, 0, 0, channels, pixels), lanes, per_chunk);
    if (const int error = cudaGetLastError()) return error;
    const int64_t maps = samples * channels, warps = threads / 32;
    pixels_join_kernel<A><<<(maps + warps - 1) / warps, threads, 0, stream>>>(
        static_cast<const A*>(means), static_cast<const A*>(m2s), static_cast<A*>(mean), static_cast<A*>(rstd),
        maps, blocks.x, per_chunk, pixels, A(eps));
    return cudaGetLastError();
  });
}

extern "C" int pixels_forward(
    const void* x, void* y, const void* mean, const void* rstd, const void* noise, const void* strength,
    const void* scale, const void* bias, int64_t noise_stride, double slope, double gain, int64_t samples,
    int64_t channels, int64_t pixels, int64_t vector, int64_t lanes, int64_t per_chunk, int64_t threads,
    int64_t in, int64_t out, cudaStream_t stream) {
  return by_dtypes(in, out, [&](auto from, auto to) -> int {
    using T = typename decltype(from)::type;
    using O = typename decltype(to)::type;
    using A = wide_t<T>;
    const int N = vector ? 16 / sizeof(T) : 1;
    const auto kernel = vector ? pixels_forward_kernel<T, O, 16 / sizeof(T)> : pixels_forward_kernel<T, O, 1>;
    kernel<<<grid(samples, channels, pixels, N, lanes, per_chunk), threads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<O*>(y), static_cast<const A*>(mean), static_cast<const A*>(rstd),
        layer_of<A>(noise, strength, scale, bias, noise_stride, 0, slope, gain, channels, pixels), lanes, per_chunk);
    return cudaGetLastError();
  });
}

extern "C" int pixels_forward_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  using B = __nv_bfloat16;
  static const Kernel table[] = {
      {"pixels_moments_kernel<float>", (const void*)pixels_moments_kernel<float, 4>},
      {"pixels_moments_kernel<bf16>", (const void*)pixels_moments_kernel<B, 8>},
      {"pixels_join_kernel<float>", (const void*)pixels_join_kernel<float>},
      {"pixels_forward_kernel<float>", (const void*)pixels_forward_kernel<float, float, 4>},
      {"pixels_forward_kernel<bf16>", (const void*)pixels_forward_kernel<B, B, 8>},
  };
  return describe(table, 5, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
