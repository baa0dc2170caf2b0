// y = leaky_relu((u - mean) * rstd * scale + bias) * gain, u = x + noise * strength, and its gradient: the arithmetic.
//
// With factor = rstd * scale, and b = sum du, a = sum du * (u - mean) over the pixels of a map:
//   before = (u - mean) * factor + bias,  y = (before > 0 ? before : before * slope) * gain
//   du = g * gain * (before > 0 ? 1 : slope),  dbias = b,  dscale = a * rstd
//   dx = factor * (du - b / pixels - (u - mean) * rstd^2 * a / pixels)
// Forward and backward compute `before` by the same operations, so they agree on its sign.
#pragma once

#include "common.cuh"

// The operands of an instance norm beside x and g. noise is [samples or 1, pixels], or null.
template <typename A> struct Layer {
  const A *noise, *strength, *scale, *bias;
  int64_t noise_stride;  // from one sample's noise to the next's; 0: the same for all
  A eps, slope, gain;
  int channels, pixels;
};

template <typename A> __device__ A activate(A before, const Layer<A>& layer) {
  return (before > 0 ? before : before * layer.slope) * layer.gain;
}

template <typename A> __device__ A masked(A g, A before, const Layer<A>& layer) {
  return (before > 0 ? g : g * layer.slope) * layer.gain;
}

// Moments from sums of n differences to a number near the mean (one of them, `shift`), and of their squares.
template <typename A> __device__ Moments<A> moments(int n, A shift, A sum, A squares) {
  if (n == 0) return {0, 0, 0};
  const A m2 = squares - sum * (sum / n);
  return {A(n), shift + sum / n, m2 < 0 ? A(0) : m2};  // rounding; NaN stays NaN
}

// The same from addresses and numbers, on the host.
template <typename A>
inline Layer<A> layer_of(
    const void* noise, const void* strength, const void* scale, const void* bias, int64_t noise_stride,
    double eps, double slope, double gain, int64_t channels, int64_t pixels) {
  auto at = [](const void* p) { return static_cast<const A*>(p); };
  return {at(noise), at(strength), at(scale), at(bias), noise_stride,
          A(eps),    A(slope),     A(gain),   int(channels), int(pixels)};
}
