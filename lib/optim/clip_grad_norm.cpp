#include "lib/optim/clip_grad_norm.h"

#include <cmath>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::optim {

double clip_grad_norm(nn::Module& module, double max_norm, bool error_if_nonfinite) {
  require<UsageError>(max_norm > 0, "clip_grad_norm: max_norm is ", max_norm, ", expected above 0");
  nn::FlatParameters& store = module.parameters();
  const nn::FlatParameters& read = store;
  nn::UpdateSettings settings;
  settings.values[nn::UpdateSettings::clip_norm] = static_cast<float>(max_norm);
  store.hooks().update_begins(module.range().first_slot, module.range().slots, settings);
  const int first = module.range().first_slot, end = first + module.range().slots;
  Backend& kernels = backend(read.gradients());
  double squares = 0;
  for (int slot = first; slot < end; ++slot) {
    if (store.has_gradient(slot)) squares += kernels.sum_of_squares(read.gradient(slot));
  }
  const double norm = std::sqrt(squares);
  require<NumericError>(std::isfinite(norm) || !error_if_nonfinite, "clip_grad_norm: the gradients' norm is ", norm);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (int slot = first; slot < end; ++slot) {
    if (store.has_gradient(slot)) kernels.scale(store.gradient(slot), static_cast<float>(factor));
  }
  return norm;
}

}  // namespace duet::optim
