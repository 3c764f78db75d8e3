// The windows of average pooling. Without functions: the kernels of each instruction set include this header.
#pragma once

#include <cstdint>

namespace duet {

/// One axis. Windows of `kernel` pixels, `stride` apart; or, where kernel is 0, adaptive ones: output i has the pixels
/// from floor(i * size / out) up to ceil((i + 1) * size / out), as torch.nn.AdaptiveAvgPool2d.
struct AverageAxis {
  std::int64_t size = 1, out = 1;  // pixels of the image, outputs
  std::int64_t kernel = 0, stride = 1, pad = 0;
  bool counts_padding = false;  // zeros of the padding count as pixels of a window
};

/// Average pooling of an image.
struct AveragePool {
  AverageAxis h, w;
};

}  // namespace duet
