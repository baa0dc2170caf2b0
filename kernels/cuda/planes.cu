// Fused instance norm and leaky ReLU in NCHW memory: one block for one plane, which it reads once.
//
// Between the statistics and their use a plane has to wait somewhere. A multiprocessor's shared memory holds 227 KB on
// an H100 or H200: a whole plane of 256 x 256 in 16 bits, or seven eighths of two. The rest, the end of a plane, is
// read again. It most likely comes from the L2 cache, because few blocks are on their way at a time. A thread reads
// from shared memory only its own writes, so no thread waits. Each thread works on 16 bytes at a time (N elements).

#include "instance_norm.cuh"

extern __shared__ __align__(16) unsigned char held[];

// N elements of x with noise, as numbers to compute with.
template <int N, typename T, typename A>
__device__ void input(A (&u)[N], const Vector<T, N>& v, const A* noise, A strength, int at) {
  Vector<A, N> z;
  if (noise) z = load<N>(noise + at);
#pragma unroll
  for (int k = 0; k < N; k++) {
    u[k] = widen(v.at[k]);
    if (noise) u[k] += z.at[k] * strength;
  }
}

template <typename T, typename O, int N>
__global__ void BOUNDS planes_forward_kernel(
    const T* __restrict__ x, O* __restrict__ y, wide_t<T>* means, wide_t<T>* rstds, Layer<wide_t<T>> layer, int kept) {
  using A = wide_t<T>;
  const int64_t plane = blockIdx.x;
  const int step = blockDim.x * N, first = threadIdx.x * N, pixels = layer.pixels;
  const A* noise = layer.noise ? layer.noise + plane / layer.channels * layer.noise_stride : nullptr;
  const A strength = noise ? *layer.strength : A(0);
  T* held_x = reinterpret_cast<T*>(held);
  x += plane * pixels;
  y += plane * pixels;

  A shift = 0, sum = 0, squares = 0, u[N];
  int n = 0;
  auto number = [&](int i) { return noise ? widen(x[i]) + noise[i] * strength : widen(x[i]); };
  const A origin = number(0);  // moments are joined as seen from there, not from a zero that may be far away
  if (first < pixels) shift = number(first);
  auto read = [&](int i) { return load<N>(x + i); };
  in_batches<4>(first, pixels, step, read, [&](int i, const Vector<T, N>& v) {
    if (i < kept) store<N>(held_x + i, v);
    input<N>(u, v, noise, strength, i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const A d = u[k] - shift;
      sum += d;
      squares += d * d;
    }
    n += N;
  });
  const Moments<A> all = over_block(moments(n, shift - origin, sum, squares), Moments<A>{0, 0, 0});
  const A mean = origin + all.mean, rstd = inverse_root(all.m2 / pixels + layer.eps);
  if (threadIdx.x == 0) {
    means[plane] = mean;
    rstds[plane] = rstd;
  }

  const A factor = rstd * layer.scale[plane], bias = layer.bias[plane];
#pragma unroll 2
  for (int i = first; i < pixels; i += step) {
    input<N>(u, i < kept ? load<N>(held_x + i) : load<N>(x + i), noise, strength, i);
    Vector<O, N> out;
#pragma unroll
    for (int k = 0; k < N; k++) out.at[k] = narrow<O>(activate((u[k] - mean) * factor + bias, layer));
    store<N>(y + i, out);
  }
}

// dx may be null (not wanted); dnoise is [planes], the sum of dx * noise over each, or null.
template <typename T, typename O, int N>
__global__ void BOUNDS planes_backward_kernel(
    const O* __restrict__ g, const T* __restrict__ x, const wide_t<T>* means, const wide_t<T>* rstds,
    T* __restrict__ dx, wide_t<T>* dscale, wide_t<T>* dbias, wide_t<T>* dnoise, Layer<wide_t<T>> layer, int kept) {
  using A = wide_t<T>;
  const int64_t plane = blockIdx.x;
  const int step = blockDim.x * N, first = threadIdx.x * N, pixels = layer.pixels;
  const A* noise = layer.noise ? layer.noise + plane / layer.channels * layer.noise_stride : nullptr;
  const A strength = noise ? *layer.strength : A(0);
  T* held_x = reinterpret_cast<T*>(held);
  O* held_g = reinterpret_cast<O*>(held + (kept * sizeof(T) + 15) / 16 * 16);
  g += plane * pixels;
  x += plane * pixels;

  const A mean = means[plane], rstd = rstds[plane], factor = rstd * layer.scale[plane], bias = layer.bias[plane];
  Sums<A, 2> sums = {{0, 0}};  // over du, over du * (u - mean)
  A u[N];
  struct Both { Vector<T, N> v; Vector<O, N> w; };
  auto read = [&](int i) { return Both{load<N>(x + i), load<N>(g + i)}; };
  in_batches<2>(first, pixels, step, read, [&](int i, const Both& both) {
    if (i < kept) {
      store<N>(held_x + i, both.v);
      store<N>(held_g + i, both.w);
    }
    input<N>(u, both.v, noise, strength, i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const A d = u[k] - mean, du = masked<A>(widen(both.w.at[k]), d * factor + bias, layer);
      sums.at[0] += du;
      sums.at[1] += du * d;
    }
  });
  sums = over_block(sums, Sums<A, 2>{{0, 0}});
  if (threadIdx.x == 0) {
    dbias[plane] = sums.at[0];
    dscale[plane] = sums.at[1] * rstd;
  }
  if (!dx && !dnoise) return;

  const A constant = sums.at[0] / pixels, slant = rstd * rstd * (sums.at[1] / pixels);
  Sums<A, 1> of_noise = {{0}};
#pragma unroll 2
  for (int i = first; i < pixels; i += step) {
    const Vector<T, N> v = i < kept ? load<N>(held_x + i) : load<N>(x + i);
    const Vector<O, N> w = i < kept ? load<N>(held_g + i) : load<N>(g + i);
    input<N>(u, v, noise, strength, i);
    Vector<T, N> out;
#pragma unroll
    for (int k = 0; k < N; k++) {
      const A d = u[k] - mean, du = masked<A>(widen(w.at[k]), d * factor + bias, layer);
      const A gradient = factor * (du - constant - d * slant);
      if (dnoise) of_noise.at[0] += gradient * noise[i + k];
      out.at[k] = narrow<T>(gradient);
    }
    if (dx) store<N>(dx + plane * pixels + i, out);
  }
  if (!dnoise) return;
  of_noise = over_block(of_noise, Sums<A, 1>{{0}});
  if (threadIdx.x == 0) dnoise[plane] = of_noise.at[0];
}

// ---- on the host -------------------------------------------------------------------------------------------------

// The number of pixels of a plane, `bytes` each, that wait in shared memory, and permission to use it. A multiprocessor
// is to have 1024 threads: one block of 1024 has all of its shared memory, each of two blocks of 512 has half, and so
// on. The number is rounded down to whole vectors of 16 bytes.
static int hold(const void* kernel, int pixels, int bytes, int threads, int* kept, int* dynamic) {
  int device = 0, most = 0, all = 0, reserved = 0;
  cudaFuncAttributes found;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device))
    return error;
  if (const cudaError_t error = cudaFuncGetAttributes(&found, kernel)) return error;
  const int share = all / (threads < 1024 ? 1024 / threads : 1) - reserved;
  const int own = static_cast<int>(found.sharedSizeBytes) + 32;  // 32: held bytes are rounded up, twice
  const int room = ((share < most ? share : most) - own) / bytes / 16 * 16;
  *kept = pixels < room ? pixels : room;
  *dynamic = *kept * bytes + 32;
  if (*dynamic <= 48 * 1024) return cudaSuccess;  // every kernel may have as much
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, *dynamic);
}

// vector: 1 where all tensors begin at multiples of 16 bytes and planes are whole vectors, else 0
extern "C" int planes_forward(
    const void* x, void* y, void* means, void* rstds, const void* noise, const void* strength, const void* scale,
    const void* bias, int64_t noise_stride, double eps, double slope, double gain, int64_t samples,
    int64_t channels, int64_t pixels, int64_t vector, int64_t threads, int64_t in, int64_t out,
    cudaStream_t stream) {
  return by_dtypes(in, out, [&](auto from, auto to) -> int {
    using T = typename decltype(from)::type;
    using O = typename decltype(to)::type;
    using A = wide_t<T>;
    const auto kernel = vector ? planes_forward_kernel<T, O, 16 / sizeof(T)> : planes_forward_kernel<T, O, 1>;
    int kept, dynamic;
    if (const int error = hold((const void*)kernel, pixels, sizeof(T), threads, &kept, &dynamic)) return error;
    kernel<<<samples * channels, threads, dynamic, stream>>>(
        static_cast<const T*>(x), static_cast<O*>(y), static_cast<A*>(means), static_cast<A*>(rstds),
        layer_of<A>(noise, strength, scale, bias, noise_stride, eps, slope, gain, channels, pixels), kept);
    return cudaGetLastError();
  });
}

extern "C" int planes_backward(
    const void* g, const void* x, const void* means, const void* rstds, void* dx, void* dscale, void* dbias,
    void* dnoise, const void* noise, const void* strength, const void* scale, const void* bias,
    int64_t noise_stride, double slope, double gain, int64_t samples, int64_t channels, int64_t pixels,
    int64_t vector, int64_t threads, int64_t in, int64_t out, cudaStream_t stream) {
  return by_dtypes(in, out, [&](auto from, auto to) -> int {
    using T = typename decltype(from)::type;
    using O = typename decltype(to)::type;
    using A = wide_t<T>;
    const auto kernel = vector ? planes_backward_kernel<T, O, 16 / sizeof(T)> : planes_backward_kernel<T, O, 1>;
    int kept, dynamic;
    if (const int error = hold((const void*)kernel, pixels, sizeof(T) + sizeof(O), threads, &kept, &dynamic)) return error;
    kernel<<<samples * channels, threads, dynamic, stream>>>(
        static_cast<const O*>(g), static_cast<const T*>(x), static_cast<const A*>(means), static_cast<const A*>(rstds),
        static_cast<T*>(dx), static_cast<A*>(dscale), static_cast<A*>(dbias), static_cast<A*>(dnoise),
        layer_of<A>(noise, strength, scale, bias, noise_stride, 0, slope, gain, channels, pixels), kept);
    return cudaGetLastError();
  });
}

extern "C" int planes_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  using B = __nv_bfloat16;
  static const Kernel table[] = {
      {"planes_forward_kernel<float>", (const void*)planes_forward_kernel<float, float, 4>},
      {"planes_forward_kernel<bf16>", (const void*)planes_forward_kernel<B, B, 8>},
      {"planes_backward_kernel<float>", (const void*)planes_backward_kernel<float, float, 4>},
      {"planes_backward_kernel<bf16>", (const void*)planes_backward_kernel<B, B, 8>},
  };
  return describe(table, 4, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
