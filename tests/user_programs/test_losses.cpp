// Losses that users write, of single samples and of whole batches: the gradients of one device, or an error under DDP.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

/// What a loss is computed from: the output y (N, 10) of the images x.
struct LossStep {
  Run& run;
  BodyAndHead& model;
  BodyAndHead& teacher;
  Variable x, y;
  double& baseline;  // of earlier steps
  Variable off_tape(nn::Module& module) const {
    const NoGrad off;
    return module(x);
  }
};
using Loss = std::function<Variable(LossStep&)>;

Program trained_by(const Loss& loss) {
  return [loss](Run& run) {
    BodyAndHead model, teacher(kSeed + 1);
    teacher.eval();
    data::Loader loader = loader_of(run.size(), run.rank());
    nn::Module& net = run.wrap(model);
    optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
    double baseline = 0;
    for (auto& [images, labels] : loader) {
      opt.zero_grad();
      LossStep step{run, model, teacher, images, net(images), baseline};
      loss(step).backward();
      opt.step();
    }
    return values_of(model);
  };
}

/// (N, 10) in [0, 0.2], another one for each sample, none of which is the batch's.
Variable of_samples(const Variable& x) {
  const Tensor all = empty({40, 10});
  Mt19937(3).uniform(all.span<float>(), 0, 0.2);
  const std::int64_t first = x.value().stamp().first;
  return all.rows(first, first + x.size(0)).set_stamp(x.value().stamp());
}
Variable each(const Variable& x) { return ops::sum(x, {1}, true); }
Variable unit(const Variable& x) { return x / ops::sqrt(each(x * x) + 1e-3); }
Variable similarities(const Variable& a, const Variable& b) {
  return ops::matmul(unit(a), ops::transpose(unit(b), 0, 1));
}
/// The mean over the whole batch of a number by sample.
double over_ranks(const LossStep& step, const Variable& values) {
  float sums[] = {ops::sum(values.detach()).item(), static_cast<float>(values.value().count())};
  if (step.run.group() != nullptr) step.run.group()->all_reduce(std::span<float>(sums)).wait();
  return double{sums[0]} / double{sums[1]};
}

struct LossRow {
  const char* what;
  Loss loss;
  std::string error{};  // under DDP, where a rank has only its own samples
};

const LossRow kLosses[] = {
    {"distillation", [](LossStep& s) { return -ops::batch_mean(each(ops::exp(s.off_tape(s.teacher)) * s.y)); }},
    {"two views, of which one is detached",
     [](LossStep& s) { return -ops::mean(each(unit(s.y) * unit(0.5 * s.y + of_samples(s.x)).detach())); }},
    {"label smoothing by hand", [](LossStep& s) { return -ops::mean(each((0.9 * of_samples(s.x) + 0.01) * s.y)); }},
    {"the focal loss of each sample",
     [](LossStep& s) {
       const Variable p = each(ops::exp(s.y) * of_samples(s.x)), rest = 1 - p;
       return -ops::batch_mean(rest * rest * ops::log(p));
     }},
    {"REINFORCE with a running baseline",
     [](LossStep& s) {
       const Variable reward = each(of_samples(s.x)), advantage = reward - s.baseline;
       s.baseline = 0.9 * s.baseline + 0.1 * over_ranks(s, reward);
       return -ops::mean(advantage * each(s.y));
     }},
    {"a weight that is learned",
     [](LossStep& s) {
       const Variable b = s.model.context().parameter(3), noise = ops::sum(b * b) + 1;
       return ops::mean(s.y * s.y) / (2 * noise) + ops::log(noise);
     }},
    {"outputs around their detached mean",
     [](LossStep& s) { return ops::mean((s.y - ops::mean(s.y).detach()) * of_samples(s.x)); }},
    {"outputs around the mean of each class", [](LossStep& s) { return ops::mean(s.y - ops::mean(s.y, {0}) * 2); }},
    {"time first",
     [](LossStep& s) {
       return ops::batch_mean(ops::exp(ops::mean(ops::transpose(ops::reshape(s.y, {-1, 5, 2}), 0, 1), {0})));
     }},
    {"REINFORCE with the baseline of the batch",
     [](LossStep& s) { return ops::mean((ops::mean(s.x) - each(of_samples(s.x))) * each(s.y)); },
     "mul: a constant among its arguments is, or was computed from, a mean"},
    {"a teacher around the mean of each class",
     [](LossStep& s) {
       const Variable t = s.off_tape(s.teacher);
       return -ops::mean(each(ops::softmax(t - ops::mean(t, {0})) * s.y));
     },
     "mul: a constant among its arguments is, or was computed from, a mean"},
    {"a margin around a detached mean", [](LossStep& s) { return ops::mean(ops::relu(s.y - ops::mean(s.y).detach())); },
     "sub: a constant among its arguments is, or was computed from, a mean"},
    {"standardised outputs",
     [](LossStep& s) {
       const Variable centred = s.y - ops::mean(s.y, {0});
       return ops::mean(ops::tanh(centred / ops::sqrt(ops::mean(centred * centred, {0}) + 1e-3)));
     },
     "mul: its argument is the result of mean over this device's rows"},
    {"the other samples as negatives", [](LossStep& s) { return -ops::mean(ops::log_softmax(similarities(s.y, s.y))); },
     "linear: combines samples of the batch with others of this device"},
    {"the teacher's similarities",
     [](LossStep& s) {
       const Variable t = s.off_tape(s.teacher);
       return -ops::mean(each(similarities(t, t)) * s.y);
     },
     "mul: a constant among its arguments is, or was computed from, a mean"},
    {"correlated features",
     [](LossStep& s) {
       const Variable product = ops::matmul(ops::transpose(unit(s.y), 0, 1), s.y) / double(s.x.size(0));
       return ops::sum(product * product);
     },
     "mul: its argument is the result of linear over this device's rows"},
    {"differences of pairs",
     [](LossStep& s) { return ops::mean(ops::sigmoid(each(s.y) - ops::transpose(each(s.y), 0, 1))); },
     "sub: combines samples of the batch with others of this device"},
    {"probabilities of samples", [](LossStep& s) { return ops::mean(ops::softmax(s.y, 0) * of_samples(s.x)); },
     "softmax: combines samples of the batch with others of this device"},
};

}  // namespace

TEST_CASE("losses of single samples and of whole batches train as on one device, or DDP names the operator") {
  for (const LossRow& row : kLosses) {
    const Program program = trained_by(row.loss);
    check({row.what, row.error.empty() ? kAll : std::vector{Mode::alone, Mode::dp}, program, {.exact = false}});
    if (!row.error.empty()) check({row.what, kDdp, program, {.error = row.error}});
  }
}
