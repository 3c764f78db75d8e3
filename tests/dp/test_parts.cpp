// Parts of a model, and a dropout that runs more than once on a batch, over any number of devices.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/two_parts.h"

using namespace duet;
using namespace duet_test;

namespace {

using Values = std::vector<float>;

void append(Values& to, const Tensor& tensor) {
  if (tensor.dtype() != DType::f32) return;
  to.insert(to.end(), tensor.span<float>().begin(), tensor.span<float>().end());
}

/// Calls body(net) with the model itself, or over `devices` devices.
template <class Body>
void with_devices(nn::Module& model, int devices, dp::Refresh refresh, Body body) {
  if (devices == 1) return body(model);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices), .replicas = refresh});
  body(net);
}

/// A frozen backbone with its batch norm, of which hidden and head have optimizers of their own.
Values train_parts(int devices, dp::Refresh refresh, std::int64_t rows) {
  TwoParts model;
  Values all;
  with_devices(model, devices, refresh, [&](nn::Module& net) {
    optim::SGD hidden(model.hidden, {.lr = 0.05f, .momentum = 0.5f});
    optim::Adam head(model.head, {.lr = 0.01f});
    net.train();
    model.backbone.eval();
    for (std::int64_t step = 0; step < 3; ++step) {
      const Batch batch = make_batch(rows, step);
      hidden.zero_grad();
      head.zero_grad();
      const Variable first = net(batch.images), second = net(batch.images);
      CHECK(std::memcmp(first.value().raw(), second.value().raw(), first.value().bytes()) != 0);
      ops::nll_loss(second, batch.labels).backward();
      all.push_back(static_cast<float>(optim::clip_grad_norm(model.hidden, 0.5)));
      hidden.step();
      head.step();
      append(all, first.value());
    }
  });
  for (const NamedTensor& one : model.state_dict()) append(all, one.tensor);
  return all;
}

/// Forwards of parts of a batch, and of all of it, in turn.
Values draws(int devices, dp::Refresh refresh, bool stamped) {
  TwoParts model;
  Values all;
  with_devices(model, devices, refresh, [&](nn::Module& net) {
    const NoGrad guard;
    model.backbone.eval();
    Batch batch = make_batch(8, 1);
    if (!stamped) batch.images.set_stamp({});
    for (int pass = 0; pass < 2; ++pass)
      for (const auto& [begin, end] : {std::pair(0, 3), std::pair(0, 8), std::pair(3, 8), std::pair(0, 3)})
        append(all, net(batch.images.rows(begin, end)).value());
  });
  return all;
}

}  // namespace

TEST_CASE("optimizers and modes of parts leave the same bits on 1, 2, 4 and 8 devices") {
  for (const std::int64_t rows : {20, 5}) {
    const Values single = train_parts(1, dp::Refresh::persistent, rows);
    for (const int devices : {2, 4, 8})
      for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward}) {
        CAPTURE(rows, devices);
        CHECK(train_parts(devices, refresh, rows) == single);
      }
  }
}

TEST_CASE("what a dropout draws for the n-th time does not depend on the number of devices") {
  for (const bool stamped : {true, false}) {
    const Values single = draws(1, dp::Refresh::persistent, stamped);
    for (const int devices : {2, 4, 8})
      for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward}) {
        CAPTURE(stamped, devices);
        const Values got = draws(devices, refresh, stamped);
        REQUIRE(got.size() == single.size());
        for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - single[i]) < 1e-5f);
      }
  }
}

TEST_CASE("the mode of a wrapper is that of its module") {
  TwoParts model;
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  model.backbone.eval();
  CHECK(net.training());
  CHECK_FALSE(model.norm.training());
  model.eval();
  CHECK_FALSE(net.training());
  net.train();
  CHECK(model.norm.training());
}
