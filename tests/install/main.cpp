// A program outside of duet's tree, built against an installed duet.
#include <cstdio>

#include "lib/sha256.h"
#include "lib/tensor.h"

int main() {
  const duet::Tensor tensor = duet::from_values<float>({2, 2}, {1, 2, 3, 4});
  float sum = 0;
  for (const float value : tensor.rows(1, 2).span<float>()) sum += value;
  std::printf("%s %g %s\n", tensor.shape().str().c_str(), static_cast<double>(sum), duet::sha256_hex({}).c_str());
  return sum == 7 ? 0 : 1;
}
