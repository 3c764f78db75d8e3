#include "lib/optim/adam.h"

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::optim {

Adam::Adam(nn::Module& model, const AdamOptions& options, const std::string& kind, bool decoupled)
    : Optimizer(model, kind, options.lr, {"exp_avg", "exp_avg_sq"}, true), options_(options), decoupled_(decoupled) {
  for (const double beta : {options.beta1, options.beta2})
    require<UsageError>(beta >= 0 && beta < 1, kind, ": beta is ", beta, ", expected 0 to below 1");
  require<UsageError>(options.eps >= 0, kind, ": eps is ", options.eps, ", expected 0 or more");
  require<UsageError>(options.weight_decay >= 0, kind, ": weight decay is ", options.weight_decay,
                      ", expected 0 or more");
}

void Adam::update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const {
  const AdamRule rule{.lr = lr(),
                      .beta1 = options_.beta1,
                      .beta2 = options_.beta2,
                      .eps = options_.eps,
                      .weight_decay = options_.weight_decay,
                      .decoupled = decoupled_,
                      .step = step};
  backend(run.values).adam_step(run.values, run.gradients, run.state[0], run.state[1], rule, share, shares);
}

void Adam::add_settings(nn::UpdateSettings& settings) const {
  using Settings = nn::UpdateSettings;
  settings.optimizer = decoupled_ ? Settings::adamw : Settings::adam;
  settings.values[Settings::beta1] = static_cast<float>(options_.beta1);
  settings.values[Settings::beta2] = static_cast<float>(options_.beta2);
  settings.values[Settings::weight_decay] = static_cast<float>(options_.weight_decay);
  settings.values[Settings::eps] = static_cast<float>(options_.eps);
}

}  // namespace duet::optim
