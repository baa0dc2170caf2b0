// The place of a thread in channels_last memory, for pixels_forward.cu and pixels_backward.cu.
//
// Neighbouring threads have neighbouring channels, 16 bytes (N channels) each; a block has a chunk of a sample's
// pixels. As many threads as `lanes`, a power of two, cover the channels of a block. Its other threads are on other
// pixels.
#pragma once

#include "instance_norm.cuh"

#define NARROW_BOUNDS __launch_bounds__(MAX_THREADS < 256 ? MAX_THREADS : 256, MIN_BLOCKS)

// The place of a thread: channel c (and the N - 1 after it) of pixels p, p + rows, ... before end, of a sample.
struct Place {
  int64_t sample;
  int chunk, lane, row, rows, c, p, first, end;
  bool inside;
  __device__ Place(int N, int lanes, int channels, int pixels, int per_chunk, bool backwards) {
    chunk = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    sample = backwards ? gridDim.z - 1 - blockIdx.z : blockIdx.z;
    lane = threadIdx.x & (lanes - 1);
    row = threadIdx.x / lanes;
    rows = blockDim.x / lanes;
    c = (blockIdx.y * lanes + lane) * N;
    first = chunk * per_chunk;
    end = min(first + per_chunk, pixels);
    p = first + row;
    inside = c < channels;
  }
  // the number of row r's pixels
  __device__ int count(int r) const { return max(0, (end - first - r + rows - 1) / rows); }
};

// A thread's loads of a pixel: N channels, and its noise (0 if there is none).
template <typename T, int N> struct Pixel {
  Vector<T, N> v;
  wide_t<T> noise;
  __device__ wide_t<T> at(int k, wide_t<T> strength) const { return widen(v.at[k]) + noise * strength; }
};

template <int N, typename T>
__device__ inline Pixel<T, N> pixel(const T* x, const Layer<wide_t<T>>& layer, const Place& at, int p) {
  const T* from = x + (at.sample * layer.pixels + p) * layer.channels + at.c;
  return {load<N>(from), layer.noise ? layer.noise[at.sample * layer.noise_stride + p] : wide_t<T>(0)};
}

extern __shared__ __align__(16) unsigned char rows_of_block[];

// A thread's facts about the maps of its N channels: before = (u - mean) * factor + bias.
template <typename A, int N> struct Maps {
  A mean[N], factor[N], bias[N];
  __device__ Maps(const A* means, const A* rstds, const Layer<A>& layer, int64_t map) {
    const Vector<A, N> m = load<N>(means + map), r = load<N>(rstds + map);
    const Vector<A, N> s = load<N>(layer.scale + map), b = load<N>(layer.bias + map);
#pragma unroll
    for (int k = 0; k < N; k++) {
      mean[k] = m.at[k];
      factor[k] = r.at[k] * s.at[k];
      bias[k] = b.at[k];
    }
  }
};

template <typename T, typename O, int N> struct Both { Pixel<T, N> x; Vector<O, N> g; };

// ---- on the host -------------------------------------------------------------------------------------------------

// blocks: chunks of pixels, groups of channels, samples
inline dim3 grid(int64_t samples, int64_t channels, int64_t pixels, int64_t each, int64_t lanes, int64_t per_chunk) {
  return dim3((pixels + per_chunk - 1) / per_chunk, (channels + lanes * each - 1) / (lanes * each), samples);
}
