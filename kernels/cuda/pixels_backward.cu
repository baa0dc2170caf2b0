// The gradient of pixels_forward.cu: g and x are read for the two sums of each map, and again for dx.
//
// dx needs both sums of a map. So one kernel takes the sums of chunks, and one warp for each map joins them. The next
// kernel writes dx. It goes through memory backwards, to find the last reads in the L2 cache.

#include "pixels.cuh"

// sums: [2, samples, channels, chunks], over du and over du * (u - mean)
template <typename T, typename O, int N>
__global__ void NARROW_BOUNDS pixels_sums_kernel(
    const O* __restrict__ g, const T* __restrict__ x, const wide_t<T>* __restrict__ means,
    const wide_t<T>* __restrict__ rstds, wide_t<T>* sums, Layer<wide_t<T>> layer, int lanes, int per_chunk) {
  using A = wide_t<T>;
  const Place at(N, lanes, layer.channels, layer.pixels, per_chunk, false);
  A of_du[N], of_product[N];
#pragma unroll
  for (int k = 0; k < N; k++) of_du[k] = of_product[k] = 0;
  if (at.inside) {
    const A strength = layer.noise ? *layer.strength : A(0);
    const Maps<A, N> of(means, rstds, layer, at.sample * layer.channels + at.c);
    auto read = [&](int p) {
      const int64_t here = (at.sample * layer.pixels + p) * layer.channels + at.c;
      return Both<T, O, N>{pixel<N>(x, layer, at, p), load<N>(g + here)};
    };
    in_batches<2>(at.p, at.end, at.rows, read, [&](int, const Both<T, O, N>& one) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        const A d = one.x.at(k, strength) - of.mean[k];
        const A du = masked<A>(widen(one.g.at[k]), d * of.factor[k] + of.bias[k], layer);
        of_du[k] += du;
        of_product[k] += du * d;
      }
    });
  }
  const int width = lanes * N;
  A* first = reinterpret_cast<A*>(rows_of_block);  // [rows, width]
  A* second = first + at.rows * width;
#pragma unroll
  for (int k = 0; k < N; k++) {
    first[at.row * width + at.lane * N + k] = of_du[k];
    second[at.row * width + at.lane * N + k] = of_product[k];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < width; column += blockDim.x) {
    const int c = blockIdx.y * width + column;
    if (c >= layer.channels) continue;
    Sums<A, 2> all = {{0, 0}};
    for (int r = 0; r < at.rows; r++) all.join({{first[r * width + column], second[r * width + column]}});
    const int64_t to = (at.sample * layer.channels + c) * gridDim.x + at.chunk;
    sums[to] = all.at[0];
    sums[to + int64_t(gridDim.z) * layer.channels * gridDim.x] = all.at[1];
  }
}

// One warp for each map: dbias and dscale from the sums of its chunks.
template <typename A>
__global__ void NARROW_BOUNDS pixels_total_kernel(
    const A* sums, const A* rstds, A* dscale, A* dbias, int64_t maps, int chunks) {
  const int64_t map = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (map >= maps) return;  // whole warps
  Sums<A, 2> all = {{0, 0}};
  for (int i = threadIdx.x % 32; i < chunks; i += 32)
    all.join({{sums[map * chunks + i], sums[(maps + map) * chunks + i]}});
  all = over_warp(all);
  if (threadIdx.x % 32) return;
  dbias[map] = all.at[0];
  dscale[map] = all.at[1] * rstds[map];
}

// dx may be null; dnoise: [blocks], the sum of dx * noise over each, or null.
template <typename T, typename O, int N>
__global__ void NARROW_BOUNDS pixels_backward_kernel(
    const O* __restrict__ g, const T* __restrict__ x, const wide_t<T>* __restrict__ means,
    const wide_t<T>* __restrict__ rstds, const wide_t<T>* __restrict__ dscale, const wide_t<T>* __restrict__ dbias,
    T* __restrict__ dx, wide_t<T>* dnoise, Layer<wide_t<T>> layer, int lanes, int per_chunk) {
  using A = wide_t<T>;
  const Place at(N, lanes, layer.channels, layer.pixels, per_chunk, true);
  const A strength = layer.noise ? *layer.strength : A(0);
  const int64_t map = at.sample * layer.channels + at.c;
  Sums<A, 1> of_noise = {{0}};
  if (at.inside) {
    const Maps<A, N> of(means, rstds, layer, map);
    const Vector<A, N> a = load<N>(dscale + map), b = load<N>(dbias + map), r = load<N>(rstds + map);
    A constant[N], slant[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
      constant[k] = b.at[k] / layer.pixels;
      slant[k] = r.at[k] * (a.at[k] / layer.pixels);
    }
    auto read = [&](int p) {
      const int64_t here = (at.sample * layer.pixels + p) * layer.channels + at.c;
      return Both<T, O, N>{pixel<N>(x, layer, at, p), load<N>(g + here)};
    };
    in_batches<2>(at.p, at.end, at.rows, read, [&](int p, const Both<T, O, N>& one) {
      A over_channels = 0;
      Vector<T, N> out;
#pragma unroll
      for (int k = 0; k < N; k++) {
        const A d = one.x.at(k, strength) - of.mean[k];
        const A du = masked<A>(widen(one.g.at[k]), d * of.factor[k] + of.bias[k], layer);
        const A gradient = of.factor[k] * (du - constant[k] - d * slant[k]);
        over_channels += gradient;
        out.at[k] = narrow<T>(gradient);
      }
      of_noise.at[0] += over_channels * one.x.noise;
      if (dx) store<N>(dx + (at.sample * layer.pixels + p) * layer.channels + at.c, out);
    });
  }
  if (!dnoise) return;
  of_noise = over_block(of_noise, Sums<A, 1>{{0}});
  const int64_t block = (int64_t(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) dnoise[block] = of_noise.at[0];
}

// ---- on the host -------------------------------------------------------------------------------------------------

extern "C" int pixels_sums(
    const void* g, const void* x, const void* mean, const void* rstd, void* sums, void* dscale, void* dbias,
    const void* noise, const void* strength, const void* scale, const void* bias, int64_t noise_stride,
    double slope, double gain, int64_t samples, int64_t channels, int64_t pixels, int64_t vector, int64_t lanes,
    int64_t per_chunk, int64_t threads, int64_t in, int64_t out, cudaStream_t stream) {
  return by_dtypes(in, out, [&](auto from, auto to) -> int {
    using T = typename decltype(from)::type;
    using O = typename decltype(to)::type;
    using A = wide_t<T>;
    const int N = vector ? 16 / sizeof(T) : 1;
    const auto kernel = vector ? pixels_sums_kernel<T, O, 16 / sizeof(T)> : pixels_sums_kernel<T, O, 1>;
    const dim3 blocks = grid(samples, channels, pixels, N, lanes, per_chunk);
    kernel<<<blocks, threads, threads * N * 2 * sizeof(A), stream>>>(
        static_cast<const O*>(g), static_cast<const T*>(x), static_cast<const A*>(mean), static_cast<const A*>(rstd),
        static_cast<A*>(sums),
        layer_of<A>(noise, strength, scale, bias, noise_stride, 0, slope, gain, channels, pixels), lanes, per_chunk);
    if (const int error = cudaGetLastError()) return error;
    const int64_t maps = samples * channels, warps = threads / 32;
    pixels_total_kernel<A><<<(maps + warps - 1) / warps, threads, 0, stream>>>(
        static_cast<const A*>(sums), static_cast<const A*>(rstd), static_cast<A*>(dscale), static_cast<A*>(dbias),
        maps, blocks.x);
    return cudaGetLastError();
  });
}

extern "C" int pixels_backward(
    const void* g, const void* x, const void* mean, const void* rstd, const void* dscale, const void* dbias,
    void* dx, void* dnoise, const void* noise, const void* strength, const void* scale, const void* bias,
    int64_t noise_stride, double slope, double gain, int64_t samples, int64_t channels, int64_t pixels,
    int64_t vector, int64_t lanes, int64_t per_chunk, int64_t threads, int64_t in, int64_t out,
    cudaStream_t stream) {
  return by_dtypes(in, out, [&](auto from, auto to) -> int {
    using T = typename decltype(from)::type;
    using O = typename decltype(to)::type;
    using A = wide_t<T>;
    const int N = vector ? 16 / sizeof(T) : 1;
    const auto kernel = vector ? pixels_backward_kernel<T, O, 16 / sizeof(T)> : pixels_backward_kernel<T, O, 1>;
    kernel<<<grid(samples, channels, pixels, N, lanes, per_chunk), threads, 0, stream>>>(
        static_cast<const O*>(g), static_cast<const T*>(x), static_cast<const A*>(mean), static_cast<const A*>(rstd),
        static_cast<const A*>(dscale), static_cast<const A*>(dbias), static_cast<T*>(dx), static_cast<A*>(dnoise),
        layer_of<A>(noise, strength, scale, bias, noise_stride, 0, slope, gain, channels, pixels), lanes, per_chunk);
    return cudaGetLastError();
  });
}

extern "C" int pixels_backward_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  using B = __nv_bfloat16;
  static const Kernel table[] = {
      {"pixels_sums_kernel<float>", (const void*)pixels_sums_kernel<float, float, 4>},
      {"pixels_sums_kernel<bf16>", (const void*)pixels_sums_kernel<B, B, 8>},
      {"pixels_total_kernel<float>", (const void*)pixels_total_kernel<float>},
      {"pixels_backward_kernel<float>", (const void*)pixels_backward_kernel<float, float, 4>},
      {"pixels_backward_kernel<bf16>", (const void*)pixels_backward_kernel<B, B, 8>},
  };
  return describe(table, 5, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
