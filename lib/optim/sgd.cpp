#include "lib/optim/sgd.h"

#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::optim {

SGD::SGD(nn::Module& model, const SGDOptions& options)
    : Optimizer(model, "SGD", options.lr,
                options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}, false),
      options_(options) {
  require<UsageError>(options.momentum >= 0 && options.weight_decay >= 0, "SGD: momentum ", options.momentum,
                      " and weight decay ", options.weight_decay, ", expected 0 or more");
  require<UsageError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                      "SGD: Nesterov momentum requires a momentum and zero dampening");
}

void SGD::update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const {
  const SGDRule rule{.lr = lr(),
                     .momentum = options_.momentum,
                     .dampening = options_.dampening,
                     .weight_decay = options_.weight_decay,
                     .nesterov = options_.nesterov,
                     .first = step == 1};
  backend(run.values)
      .sgd_step(run.values, run.gradients, run.state.empty() ? Tensor() : run.state[0], rule, share, shares);
}

void SGD::add_settings(nn::UpdateSettings& settings) const {
  using Settings = nn::UpdateSettings;
  settings.optimizer = options_.nesterov ? Settings::nesterov_sgd : Settings::sgd;
  settings.values[Settings::momentum] = options_.momentum;
  settings.values[Settings::dampening] = options_.dampening;
  settings.values[Settings::weight_decay] = options_.weight_decay;
}

}  // namespace duet::optim
