// A module that is not (or not properly) part of a model must not run with values of other modules.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;
using duet_test::ContainsSubstring;

namespace {

/// fc1 and fc2, of which as many as asked for are registered.
struct Forgetful : Module {
  explicit Forgetful(int registered) {
    if (registered > 0) register_module("fc1", fc1);
    if (registered > 1) register_module("fc2", fc2);
  }
  Variable forward(Context& context, const Variable& x) const override {
    return fc2.forward(context, fc1.forward(context, x));
  }
  using Module::forward;
  std::string type_name() const override { return "Forgetful"; }
  Linear fc1{4, 4}, fc2{4, 4};
};

/// Opens what only a module itself may do.
struct Open : Module {
  using Module::buffer;
  using Module::parameter;
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
  void add_parameter(const std::string& name) {
    register_parameter(name, {2}, [](std::span<float> values, Mt19937&) { values[0] = values[1] = 1; });
  }
  Variable forward(Context& context, const Variable&) const override { return parameter(context, 0); }
  using Module::forward;
  std::string type_name() const override { return "Open"; }
};

const std::string kNotRegistered = "Linear(in_features=4, out_features=4, bias=True) is not registered in the model";

}  // namespace

TEST_CASE("a child that is not registered is named instead of running with another layer's weights") {
  const Tensor x = zeros({8, 4});
  for (const int registered : {0, 1}) {
    CAPTURE(registered);
    Forgetful model(registered);
    CHECK_THROWS_AS(model(x), UsageError);
    CHECK_THROWS_WITH(model(x), ContainsSubstring(kNotRegistered));
    for (const int devices : {1, 2}) {
      dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices)});
      CHECK_THROWS_WITH(net(x), ContainsSubstring(kNotRegistered));
    }
  }
  Forgetful model(2);
  CHECK(model(x).shape() == Shape{8, 4});
}

TEST_CASE("a child that is not registered is named on every rank") {
  const auto train = [](ddp::ProcessGroup& group) {
    Forgetful model(1);
    ddp::DistributedDataParallel net(model, group);
    net(zeros({8, 4}));
  };
  for (const int ranks : {1, 2}) {
    CHECK_THROWS_AS(ddp::run_rank_threads(ranks, train), UsageError);
    CHECK_THROWS_WITH(ddp::run_rank_threads(ranks, train), ContainsSubstring(kNotRegistered));
  }
}

TEST_CASE("the children of a child that is not registered are named from there") {
  struct Outer : Module {
    Outer() { register_module("head", head); }
    Variable forward(Context& context, const Variable& x) const override {
      return head.forward(context, block.forward(context, x));
    }
    using Module::forward;
    std::string type_name() const override { return "Outer"; }
    Forgetful block{2};
    Linear head{4, 4};
  };
  Outer model;
  CHECK_THROWS_WITH(model(zeros({1, 4})), ContainsSubstring("fc1 (Linear(in_features=4, out_features=4, bias=True)) of "
                                                            "Forgetful is not registered in the model"));
}

TEST_CASE("a dropout that is not registered does not draw another layer's numbers") {
  struct Dropping : Module {
    Dropping() { register_module("fc", fc); }
    Variable forward(Context& context, const Variable& x) const override {
      return dropout.forward(context, fc.forward(context, x));
    }
    using Module::forward;
    std::string type_name() const override { return "Dropping"; }
    Linear fc{4, 4};
    Dropout dropout{0.5};
  };
  Dropping model;
  CHECK_THROWS_WITH(model(zeros({1, 4})), ContainsSubstring("Dropout(p=0.5, inplace=False) is not registered"));
}

TEST_CASE("a module does not run with the context of another model") {
  Forgetful model(2), other(2);
  CHECK_THROWS_AS(model.forward(other.context(), Variable(zeros({1, 4}))), UsageError);
  CHECK_THROWS_WITH(model.forward(other.context(), Variable(zeros({1, 4}))),
                    ContainsSubstring("fc1 (Linear(in_features=4, out_features=4, bias=True)) of Forgetful is not"));
  BatchNorm2d norm(4);
  CHECK_THROWS_WITH(norm.forward(other.context(), Variable(zeros({2, 4, 1, 1}))), ContainsSubstring("BatchNorm2d(4"));
  Context nothing;
  CHECK_THROWS_AS(model.forward(nothing, Variable(zeros({1, 4}))), UsageError);
  CHECK(model(zeros({1, 4})).shape() == Shape{1, 4});
}

TEST_CASE("a part that runs in replicas does not reach the rest of the model") {
  struct Part : Module {
    explicit Part(const Linear& of_another) : other(of_another) { register_module("own", own); }
    Variable forward(Context& context, const Variable& x) const override {
      return other.forward(context, own.forward(context, x));
    }
    using Module::forward;
    std::string type_name() const override { return "Part"; }
    Linear own{4, 4};
    const Linear& other;
  };
  struct Whole : Module {
    Whole() {
      register_module("before", before);
      register_module("part", net);
      register_module("after", after);
    }
    Variable forward(Context& context, const Variable& x) const override { return net.forward(context, x); }
    using Module::forward;
    std::string type_name() const override { return "Whole"; }
    Linear before{4, 4}, after{4, 4};
    Part part{after};
    dp::DataParallel net{part, {.devices = first_devices(DeviceKind::cpu, 2)}};
  };
  Whole model;
  CHECK_THROWS_WITH(model(zeros({8, 4})),
                    ContainsSubstring("after (Linear(in_features=4, out_features=4, bias=True)) of "
                                      "Whole lies outside the part"));
}

TEST_CASE("a Sequential does not grow after its first use") {
  Sequential model;
  model.add<Linear>(4, 4);
  const Tensor x = zeros({1, 4});
  model(x);
  CHECK_THROWS_AS(model.add<Linear>(4, 4), UsageError);
  CHECK_THROWS_WITH(model.add<Linear>(4, 4),
                    "module '1' of Sequential is registered after the values of its model were made");
  CHECK(model.size() == 1);
  CHECK(model(x).shape() == Shape{1, 4});
  Sequential outer;
  auto& inner = outer.add<Sequential>();
  inner.add<Linear>(4, 4);
  outer.initialise(std::uint64_t{1});
  CHECK_THROWS_WITH(inner.add<Linear>(4, 4),
                    "module '1' of 0 (Sequential) is registered after the values of its model were made");
}

TEST_CASE("nothing is registered after the values were made") {
  Open model;
  model.add_parameter("weight");
  model.register_buffer("count", zeros({1}));
  Linear early(4, 4), late(4, 4);
  model.register_module("early", early);
  model.parameters();
  const char* const after = " of Open is registered after the values of its model were made";
  CHECK_THROWS_WITH(model.register_module("late", late), concat("module 'late'", after));
  CHECK_THROWS_WITH(model.add_parameter("late"), concat("parameter 'late'", after));
  CHECK_THROWS_WITH(model.register_buffer("late", zeros({1})), concat("buffer 'late'", after));
  CHECK(model.state_dict().size() == 4);
  CHECK(late(zeros({1, 4})).shape() == Shape{1, 4});  // a model of its own
}

TEST_CASE("a module reads its own parameters and buffers only") {
  Open model;
  model.add_parameter("weight");
  model.register_buffer("count", zeros({1}));
  Linear child(4, 4);
  model.register_module("child", child);
  CHECK(model.parameter(model.context(), 0).shape() == Shape{2});
  CHECK_THROWS_WITH(model.parameter(model.context(), 1), "Open has 1 parameters, asked for number 1");
  CHECK_THROWS_WITH(model.parameter(model.context(), -1), "Open has 1 parameters, asked for number -1");
  CHECK_THROWS_WITH(model.buffer(model.context(), 1), "Open has 1 buffers, asked for number 1");
}

TEST_CASE("a module is registered once, in one place and under a name of its own") {
  Open model, inner;
  Linear child(4, 4);
  model.register_module("a", child);
  CHECK_THROWS_WITH(model.register_module("b", child), "module b is part of another module already");
  CHECK_THROWS_WITH(inner.register_module("b", child), "module b is part of another module already");
  CHECK_THROWS_AS(model.register_module("self", model), UsageError);
  model.register_module("inner", inner);
  CHECK_THROWS_WITH(inner.register_module("model", model), "module model holds the module that it is registered in");
  model.add_parameter("weight");
  Linear other(4, 4);
  CHECK_THROWS_WITH(model.register_module("a", other), "Open has something named 'a' already");
  CHECK_THROWS_WITH(model.register_module("weight", other), "Open has something named 'weight' already");
  CHECK_THROWS_WITH(model.add_parameter("a"), "Open has something named 'a' already");
  CHECK_THROWS_WITH(model.register_buffer("weight", zeros({1})), "Open has something named 'weight' already");
  CHECK_THROWS_WITH(model.register_module("a.b", other), "Open: 'a.b' is no name: expected letters without a dot");
  CHECK_THROWS_WITH(model.add_parameter(""), "Open: '' is no name: expected letters without a dot");
  CHECK(model.state_dict().size() == 3);
}

TEST_CASE("a module that is destroyed while its model lives is named") {
  for (const bool used : {false, true}) {
    CAPTURE(used);
    Open model;
    model.add_parameter("weight");
    auto child = std::make_unique<Linear>(4, 4);
    model.register_module("fc", *child);
    if (used) model.parameters();
    child.reset();
    CHECK_THROWS_AS(model.state_dict(), UsageError);
    CHECK_THROWS_WITH(model.state_dict(), "module 'fc' of Open was destroyed before it");
    CHECK_THROWS_WITH(model.str(), "module 'fc' of Open was destroyed before it");
    CHECK_THROWS_WITH(model.initialise(std::uint64_t{1}), "module 'fc' of Open was destroyed before it");
  }
}

TEST_CASE("a module that outlives its model has lost its values") {
  Linear child(4, 4);
  auto model = std::make_unique<Open>();
  model->register_module("fc", child);
  model->parameters();
  model.reset();
  CHECK_THROWS_WITH(child(zeros({1, 4})), ContainsSubstring("the model that it was part of was destroyed"));
  Open other;
  other.register_module("fc", child);
  CHECK(other.state_dict().size() == 2);
  CHECK(child(zeros({1, 4})).shape() == Shape{1, 4});
}
