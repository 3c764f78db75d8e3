// Handwriting-like digits, drawn by the program: for machines without MNIST, and for tests.
#pragma once

#include <cstdint>

#include "lib/data/dataset.h"

namespace duet::data {

/// `count` images of 28 x 28 bytes with their labels 0..9. Image i is a polyline skeleton of its digit with jittered
/// corners under a random affine map, drawn with a random pen on a noisy ground. It depends on (seed, first + i) only,
/// and only uses arithmetic that IEEE 754 rounds exactly: the same bytes on every machine. About 10 us an image.
/// Throws UsageError for a negative count or first.
ImageDataset draw_digits(std::uint64_t seed, std::int64_t count, std::int64_t first = 0);

}  // namespace duet::data
