// Functions that belong to no kernel: CUDA's words for an error, and the compiler's facts about a kernel.

#include "common.cuh"

#include <cstdio>

extern "C" int error_text(int64_t error, char* text, int64_t length) {
  std::snprintf(text, length, "%s", cudaGetErrorString(static_cast<cudaError_t>(error)));
  return 0;
}

// Kernel `row` of a table: its name, and registers a thread, static shared memory, bytes of local memory a thread
// (spills, arrays), largest block, and the blocks of `block` threads and `dynamic` bytes that fit on a multiprocessor.
int describe(
    const Kernel* table, int64_t rows, int64_t row, int64_t block, int64_t dynamic, char* name, int64_t* out) {
  if (row < 0 || row >= rows) return cudaErrorInvalidValue;
  cudaFuncAttributes found;
  if (const cudaError_t error = cudaFuncGetAttributes(&found, table[row].address)) return error;
  std::snprintf(name, 96, "%s", table[row].name);
  out[0] = found.numRegs;
  out[1] = static_cast<int64_t>(found.sharedSizeBytes);
  out[2] = static_cast<int64_t>(found.localSizeBytes);
  out[3] = found.maxThreadsPerBlock;
  int blocks = 0;
  if (block <= found.maxThreadsPerBlock) {
    if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, table[row].address, static_cast<int>(block), static_cast<size_t>(dynamic)))
      return error;
  }
  out[4] = blocks;
  return 0;
}
