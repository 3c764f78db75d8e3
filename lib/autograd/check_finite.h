// Finds infinite numbers and NaNs where they arise: a debugging aid, off by default.
#pragma once

#include <cmath>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet {

/// While one lives, in any thread, every operator that is recorded throws NumericError if its result, or an input that
/// no operator made (images, parameters), is not finite; backward throws if a gradient is not. So none is missed where
/// a kernel skips its product with zeros. nn::Dropout throws UsageError if the model's input has a stamp, but not its
/// own: an operator in between forgot to pass it on. Each tensor is read once more, and a GPU is synchronised.
class CheckFinite {
 public:
  explicit CheckFinite(bool active = true);
  ~CheckFinite();
  CheckFinite(const CheckFinite&) = delete;
  CheckFinite& operator=(const CheckFinite&) = delete;

 private:
  bool active_;
};

/// Whether a CheckFinite lives.
bool checks_finite();

/// Throws NumericError with these parts if a number of x is not finite. The square of a float is a finite double.
template <class... Parts>
void require_finite(const Tensor& x, const Parts&... parts) {
  if (!x.defined() || x.dtype() != DType::f32 || x.count() == 0) return;
  require<NumericError>(std::isfinite(backend(x).sum_of_squares(x)), parts..., " is not finite");
}

}  // namespace duet
