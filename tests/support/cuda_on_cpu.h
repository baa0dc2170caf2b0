// Just enough of CUDA to run the sources of kernels/cuda on a CPU: every thread of a block is a fiber, blocks run one
// after another, and a barrier or a shuffle lets the other fibers run. Slow; for tests that have no GPU.
#pragma once

#include <immintrin.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __restrict__

using std::max;
using std::min;
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline double rsqrt(double v) { return 1 / std::sqrt(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }

struct __half { uint16_t bits; };
inline float __half2float(__half v) { return _cvtsh_ss(v.bits); }
inline __half __float2half_rn(float v) { return {static_cast<uint16_t>(_cvtss_sh(v, 0))}; }

struct __nv_bfloat16 { uint16_t bits; };
inline float __bfloat162float(__nv_bfloat16 v) {
  const uint32_t wide = uint32_t(v.bits) << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  uint32_t wide;
  std::memcpy(&wide, &v, 4);
  if (v != v) return {0x7fff};
  return {static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---- fibers ------------------------------------------------------------------------------------------------------

namespace emulated {
constexpr int STACK = 64 << 10;
struct Fiber {
  ucontext_t context;
  bool done;
  std::vector<char> stack = std::vector<char>(STACK);
};
struct Barrier { int arrived = 0, round = 0; };
inline std::vector<Fiber*> fibers;
inline int current, block_alive, warp_alive[32];
inline Barrier of_block, of_warp[32];
inline ucontext_t scheduler;
inline unsigned char slots[1024][64];  // what a thread hands over in a shuffle
inline void (*body)(void*);
inline void* body_arguments;

inline void release(Barrier& barrier, int alive) {
  if (barrier.arrived && barrier.arrived >= alive) {
    barrier.arrived = 0;
    barrier.round++;
  }
}
inline void wait(Barrier& barrier, const int& alive) {
  const int round = barrier.round;
  barrier.arrived++;
  release(barrier, alive);
  while (barrier.round == round) {
    Fiber* mine = fibers[current];
    swapcontext(&mine->context, &scheduler);
  }
}
inline void enter() {
  body(body_arguments);
  fibers[current]->done = true;
  release(of_block, --block_alive);
  release(of_warp[current / 32], --warp_alive[current / 32]);
  swapcontext(&fibers[current]->context, &scheduler);
}
inline void block(int threads) {
  while (static_cast<int>(fibers.size()) < threads) fibers.push_back(new Fiber);
  block_alive = threads;
  of_block = Barrier();
  for (int w = 0; w < 32; w++) {
    of_warp[w] = Barrier();
    warp_alive[w] = std::min(32, std::max(0, threads - w * 32));
  }
  for (int t = 0; t < threads; t++) {
    Fiber* fiber = fibers[t];
    fiber->done = false;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = STACK;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, enter, 0);
  }
  while (block_alive > 0)
    for (current = 0; current < threads; current++)
      if (!fibers[current]->done) {
        threadIdx.x = current;
        swapcontext(&scheduler, &fibers[current]->context);
      }
}
}  // namespace emulated

inline void __syncthreads() { emulated::wait(emulated::of_block, emulated::block_alive); }

template <typename T> T __shfl_down_sync(unsigned, T value, int offset) {
  const int me = emulated::current, warp = me / 32;
  std::memcpy(emulated::slots[me], &value, sizeof(T));
  emulated::wait(emulated::of_warp[warp], emulated::warp_alive[warp]);
  T found = value;
  if (me % 32 + offset < 32) std::memcpy(&found, emulated::slots[me + offset], sizeof(T));
  emulated::wait(emulated::of_warp[warp], emulated::warp_alive[warp]);
  return found;
}

template <typename... P, typename... Q>
void emulate(dim3 grid, int threads, size_t dynamic, void*, void (*kernel)(P...), Q... arguments) {
  auto run = [&] { kernel(P(arguments)...); };
  emulated::body = [](void* f) { (*static_cast<decltype(run)*>(f))(); };
  emulated::body_arguments = &run;
  gridDim = grid;
  blockDim = dim3(threads);
  if (dynamic > (256u << 10)) std::abort();
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = dim3(x, y, z);
        emulated::block(threads);
      }
}

// ---- the runtime's functions -------------------------------------------------------------------------------------

using cudaError_t = int;
using cudaStream_t = void*;
struct cudaFuncAttributes {
  int numRegs = 40, maxThreadsPerBlock = 1024;
  size_t sharedSizeBytes = 1024, localSizeBytes = 0;
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrReservedSharedMemoryPerBlock,
};
enum { cudaSuccess, cudaErrorInvalidValue, cudaFuncAttributeMaxDynamicSharedMemorySize };
extern "C" inline int emulated_shared = 227 << 10;  // bytes of shared memory that a block may have
inline int cudaGetLastError() { return 0; }
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrReservedSharedMemoryPerBlock ? 1024 : emulated_shared;
  if (which == cudaDevAttrMaxSharedMemoryPerMultiprocessor) *value = 32 * (emulated_shared + 1024);  // always enough
  return 0;
}
inline int cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) { *found = {}; return 0; }
inline int cudaFuncSetAttribute(const void*, int, int) { return 0; }
inline int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
  *blocks = 2048 / threads;
  return 0;
}
inline const char* cudaGetErrorString(int) { return "invalid argument"; }
