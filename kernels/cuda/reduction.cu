// The sum of each row, a block for each: partial sums meet in shared memory, or in registers of neighbouring threads.
//
// Through shared memory every halving is a write, a barrier for the whole block and a read, and takes 4 bytes a thread.
// A shuffle hands a register to another lane of the warp: no memory and no barrier, because a warp runs together. Only
// the warps' totals, one number each, go through shared memory. Both add in a fixed order.

#include "common.cuh"

template <typename T> __device__ wide_t<T> own_sum(const T* x, int64_t columns) {
  const T* row = x + blockIdx.x * columns;
  wide_t<T> sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) sum += widen(row[i]);
  return sum;
}

// blockDim.x must be a power of two.
template <typename T> __global__ void BOUNDS shared_sum_kernel(const T* x, wide_t<T>* y, int64_t columns) {
  __shared__ wide_t<T> partial[1024];
  partial[threadIdx.x] = own_sum(x, columns);
  __syncthreads();
  for (int half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
}

template <typename A> __device__ A warp_sum(A sum) {
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  return sum;  // lane 0 has it
}

template <typename T> __global__ void BOUNDS shuffle_sum_kernel(const T* x, wide_t<T>* y, int64_t columns) {
  __shared__ wide_t<T> of_warp[32];
  wide_t<T> sum = warp_sum(own_sum(x, columns));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (warp) return;
  sum = warp_sum(lane < blockDim.x / 32 ? of_warp[lane] : wide_t<T>(0));
  if (lane == 0) y[blockIdx.x] = sum;
}

extern "C" int shared_sum(
    const void* x, void* y, int64_t rows, int64_t columns, int64_t threads, int64_t dtype, cudaStream_t stream) {
  return by_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    shared_sum_kernel<T><<<rows, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<wide_t<T>*>(y), columns);
    return static_cast<int>(cudaGetLastError());
  });
}

extern "C" int shuffle_sum(
    const void* x, void* y, int64_t rows, int64_t columns, int64_t threads, int64_t dtype, cudaStream_t stream) {
  return by_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    shuffle_sum_kernel<T><<<rows, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<wide_t<T>*>(y), columns);
    return static_cast<int>(cudaGetLastError());
  });
}

extern "C" int reduction_kernels(int64_t row, int64_t block, int64_t dynamic, void* name, void* out) {
  static const Kernel table[] = {
      {"shared_sum_kernel<float>", (const void*)shared_sum_kernel<float>},
      {"shuffle_sum_kernel<float>", (const void*)shuffle_sum_kernel<float>},
  };
  return describe(table, 2, row, block, dynamic, static_cast<char*>(name), static_cast<int64_t*>(out));
}
