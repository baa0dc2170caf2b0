// A copy by one element a thread, a copy by 16 bytes a thread, and the kernel that does nothing.
//
// A load takes a slot in the queue of its multiprocessor whether it brings 2 bytes or 16. The bytes on their way at one
// time fill the bus. With 2-byte elements a warp's access is 64 bytes, with 16-byte vectors 512.

#include "common.cuh"

template <typename T> __global__ void BOUNDS scalar_copy_kernel(const T* x, T* y, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

// n elements. A vector holds 16 / sizeof(T); the few behind the last whole vector go one by one.
template <typename T> __global__ void BOUNDS vector_copy_kernel(const T* x, T* y, int64_t n) {
  constexpr int WIDTH = 16 / sizeof(T);
  const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * WIDTH;
  if (i + WIDTH <= n) {
    store<WIDTH>(y + i, load<WIDTH>(x + i));
  } else {
    for (int64_t j = i; j < n; j++) y[j] = x[j];
  }
}

__global__ void empty_kernel() {}

template <typename F> static int by_size(int64_t itemsize, F f) {
  if (itemsize == 1) return f(Tag<uint8_t>{});
  if (itemsize == 2) return f(Tag<uint16_t>{});
  if (itemsize == 4) return f(Tag<uint32_t>{});
  if (itemsize == 8) return f(Tag<uint64_t>{});
  return cudaErrorInvalidValue;
}

extern "C" int scalar_copy(
    const void* x, void* y, int64_t n, int64_t itemsize, int64_t threads, cudaStream_t stream) {
  return by_size(itemsize, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t blocks = (n + threads - 1) / threads;
    scalar_copy_kernel<T><<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), n);
    return static_cast<int>(cudaGetLastError());
  });
}

// x and y must begin at multiples of 16 bytes.
extern "C" int vector_copy(
    const void* x, void* y, int64_t n, int64_t itemsize, int64_t threads, cudaStream_t stream) {
  return by_size(itemsize, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t each = threads * int64_t(16 / sizeof(T)), blocks = (n + each - 1) / each;
    vector_copy_kernel<T><<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), n);
    return static_cast<int>(cudaGetLastError());
  });
}

extern "C" int empty(int64_t blocks, int64_t threads, cudaStream_t stream) {
  empty_kernel<<<blocks, threads, 0, stream>>>();
  return cudaGetLastError();
}

extern "C" int copy_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  static const Kernel table[] = {
      {"scalar_copy_kernel<2 bytes>", (const void*)scalar_copy_kernel<uint16_t>},
      {"vector_copy_kernel<2 bytes>", (const void*)vector_copy_kernel<uint16_t>},
      {"scalar_copy_kernel<4 bytes>", (const void*)scalar_copy_kernel<uint32_t>},
      {"vector_copy_kernel<4 bytes>", (const void*)vector_copy_kernel<uint32_t>},
      {"empty_kernel", (const void*)empty_kernel},
  };
  return describe(table, 5, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
