// DistributedDataParallel for LibTorch modules, apart from the module's type.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/gradient_synchroniser.h"
#include "ddp/group/compare_ranks.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_weights.h"
#include "lib/autograd/node.h"
#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "torch/backward_hooks.h"
#include "torch/ddp_options.h"
#include "torch/device_order.h"
#include "torch/elastic.h"
#include "torch/elastic_loop.h"
#include "torch/flat_gradients.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// Keeps the parameters, gradients and buffers of one module the same on all ranks. Used by one thread, which runs
/// forward and backward; LibTorch calls hooks in threads of its own, too, while that one waits. The module's tensors
/// and the group must outlive it.
class ModuleSynchroniser final : private Recoverable {
 public:
  /// Checks that all ranks have the same parameters, and copies rank 0's values and buffers to all.
  ModuleSynchroniser(const ModuleTensors& tensors, ddp::ProcessGroup& group,
                     const DistributedDataParallelOptions& options)
      : group_(with_same_model(group, tensors)),
        loop_(ElasticLoop::instance(group)),
        options_(checked(options)),
        layout_(trained(tensors.parameters)),
        gradients_(layout_, gradient_memory(layout_, &group)),
        accumulated_(layout_.parameters().size()),
        synchroniser_(group, gradients_.slots(layout_),
                      {.bucket_limits = options.bucket_limits,
                       .find_unused_parameters = options.find_unused_parameters,
                       .static_graph = options.static_graph,
                       .comm_hook = options.comm_hook}),
        hooks_(layout_.parameters(), gate_, [this](std::size_t i) { gradient_ready(i); }) {
    for (const NamedTensorRef& parameter : tensors.parameters) {
      parameters_.push_back(parameter.value);
      names_.push_back(parameter.name);
      kept_.push_back(0);
      if (!parameter.value.requires_grad()) frozen_.push_back(parameter);
    }
    for (const NamedTensorRef& buffer : tensors.buffers) buffers_.push_back(buffer.value);
    if (loop_ != nullptr) {
      require_elastic();
      Recovery::instance().allow_undo();
    }
    if (!Recovery::instance().is_void()) {  // else a process that joins gets them with the first step
      const Lasting::Hold in_state = Recovery::instance().exchange_state();
      broadcast_parameters_and_buffers(0);
    }
    Recoverable::join("a wrapper");
  }
  ~ModuleSynchroniser() override {
    leave();
    gate_->close();
  }
  ModuleSynchroniser(const ModuleSynchroniser&) = delete;
  ModuleSynchroniser& operator=(const ModuleSynchroniser&) = delete;

  [[nodiscard]] Lasting::Hold no_sync() { return synchroniser_.no_sync(); }
  bool synchronises() const { return synchroniser_.synchronises() && !in_block_.lasts(); }
  ddp::ProcessGroup& group() { return group_; }
  const DistributedDataParallelOptions& options() const { return options_; }
  /// Void steps, and those before a rank has joined, do not count.
  std::int64_t steps() const {
    return loop_ != nullptr ? Recovery::instance().steps() + backwards_ : synchroniser_.reducer().steps();
  }
  /// Null outside of elastic jobs.
  ElasticLoop* loop() const { return loop_.get(); }

  /// Before a forward in training. Returns whether the gradients are in other memory than before.
  bool step_may_begin() {
    if (loop_ == nullptr) return false;
    loop_->require_in_body();
    Recovery::instance().begin_forward();
    if (!regroups_ || Recovery::instance().is_void()) return false;
    regroups_ = false;
    const void* const before = gradients_[0].data_ptr();
    gradients_ = FlatGradients(layout_, gradient_memory(layout_, &group_));
    synchroniser_.reducer().move(before, gradients_[0].data_ptr());
    return true;
  }

  /// Before a forward that backward may follow. Throws UsageError that names a parameter which was converted or
  /// unfrozen since it was wrapped.
  void follow_parameters() {
    for (std::size_t i = 0; i < layout_.parameters().size(); ++i) {
      const at::Tensor& value = layout_.parameters()[i].value;
      const at::Tensor& expected = gradients_[i];
      if (value.scalar_type() == expected.scalar_type() && value.sizes() == expected.sizes() &&
          value.device() == expected.device())
        continue;
      const auto text = [](const at::Tensor& tensor) {
        return concat(shape_text(tensor), " on ", tensor.device().str());
      };
      throw UsageError(concat(layout_.parameters()[i].name, " is ", text(value), ", expected ", text(expected),
                              ": the module was converted after it was wrapped"));
    }
    for (const NamedTensorRef& parameter : frozen_)
      if (parameter.value.requires_grad())
        throw UsageError(concat(parameter.name,
                                " requires a gradient, but did not when the module was wrapped: make a "
                                "new wrapper"));
    hooks_.renew();
  }
  /// Before a forward in training that synchronises.
  void forward_begins() {
    const c10::DeviceGuard guard(layout_.device());
    const int root = synchroniser_.forward_begins();
    synchroniser_.weights()->consumed(synchroniser_.next_forward());
    if (options_.broadcast_buffers) broadcast_together(group_, buffers_, root);
  }
  void forward_ended() const { synchroniser_.forward_ended(); }

  /// Counts a forward's `rows` in training for the gradients' weights, as soon as backward reaches the output.
  template <class Output>
  void weigh(Output& output, std::int64_t rows) {
    if (options_.rule == ddp::GradientRule::torch || group_.size() == 1) return;
    const ddp::RankWeights::Batch batch{.forward = synchroniser_.next_forward(), .rows = rows};
    visit_tensors(output, [&](at::Tensor& tensor) {
      if (!tensor.requires_grad()) return;
      tensor.register_hook([this, gate = gate_, batch](const at::Tensor&) {
        gate->call([&] {
          const c10::DeviceGuard guard(layout_.device());
          follow_backward();
          synchroniser_.weights()->reached(batch);
        });
      });
    });
  }

  /// See DistributedDataParallel.
  void join(const std::function<void()>& body) {
    require<UsageError>(loop_ == nullptr, "join(): ", kNotElastic);
    require<UsageError>(options_.blocks == 0, "join() with blocks: every step is of all ranks' rows");
    const auto parameters_and_buffers = [&](int root) { broadcast_parameters_and_buffers(root); };
    const auto step_begins = [&](int root) {
      const DuetWork zeros_after_the_last_step(layout_.device());
      if (options_.broadcast_buffers) broadcast_together(group_, buffers_, root);
    };
    const c10::DeviceGuard guard(layout_.device());  // the zeros of ranks that have ended change it
    synchroniser_.join(body, {.by_rows = options_.rule == ddp::GradientRule::rows,
                              .step_begins = step_begins,
                              .parameters_and_buffers = parameters_and_buffers,
                              .owns = [](int) {}});
  }

 private:
  friend class BlockSteps;

  static constexpr const char* kNotElastic = "an elastic job cannot do steps with it again";

  /// Throws UsageError for what an elastic job cannot do again.
  void require_elastic() const {
    const char* const what = !layout_.device().is_cpu()                         ? "a module on a GPU"
                             : !options_.broadcast_buffers && !buffers_.empty() ? "buffers without broadcast_buffers"
                             : options_.comm_hook                               ? "a comm_hook"
                             : options_.static_graph                            ? "static_graph"
                                                                                : nullptr;
    require<UsageError>(what == nullptr, what == nullptr ? "" : what, ": ", kNotElastic);
    require<UsageError>(!Recovery::instance().places_change(),
                        "a LibTorch module in an elastic job with spare processes, or that continues with fewer ranks: "
                        "its loop cuts batches for the ranks that it begins with");
  }

  /// LibTorch's optimizers do not ask whether a step is void: so what they change is copied when it begins.
  bool is_copied() const override { return true; }
  void complete_step() override {
    if (std::uncaught_exceptions() == 0) require_kept();  // else objects leave because of another error
    backwards_ = 0;
  }
  void restore() override {
    backwards_ = 0;
    synchroniser_.weights()->restart();
    for (std::size_t i = 0; i < accumulated_.size(); ++i) {
      gradient(i) = at::Tensor();
      accumulated_[i] = 0;
    }
  }
  void regroup() override { regroups_ = true; }
  void stream(StateStream& state) override {
    for (const at::Tensor& parameter : parameters_) stream_tensor(state, parameter, parameter);
    for (const at::Tensor& buffer : buffers_) stream_tensor(state, buffer, buffer);
  }

  /// Throws UsageError that names a parameter which a step has changed without an optimizer that is kept.
  void require_kept() {
    std::span<const std::byte> before = copied();
    for (std::size_t i = 0; i < parameters_.size() && !before.empty(); ++i) {
      const std::size_t bytes = bytes_of(parameters_[i]);
      if (!kept_[i]) kept_[i] = ElasticState::updates(parameters_[i]);
      if (!kept_[i]) {
        StateStream now(std::vector<std::byte>{});
        stream_tensor(now, parameters_[i], parameters_[i]);
        require<UsageError>(std::ranges::equal(now.written(), before.first(bytes)), names_[i],
                            " has changed in a step, but is of no optimizer that an elastic job keeps: "
                            "duet::torch::elastic_state(\"optimizer\", optimizer)");
      }
      before = before.subspan(bytes);
    }
  }

  static const DistributedDataParallelOptions& checked(const DistributedDataParallelOptions& options) {
    require<UsageError>(options.compare_parameters_every >= 0, "compare_parameters_every is ",
                        options.compare_parameters_every, ", expected 0 or more");
    return options;
  }

  static ddp::ProcessGroup& with_same_model(ddp::ProcessGroup& group, const ModuleTensors& tensors) {
    std::vector<std::string> descriptions;
    const NamedTensorRef* first = nullptr;
    const auto describe = [&](const char* kind, const NamedTensorRef& tensor) {
      require_dense(tensor);
      const at::Device device = tensor.value.device();
      require<DeviceError>(device.is_cpu() || device.is_cuda(), tensor.name, " is on ", device.str(),
                           ", expected cpu or cuda");
      if (first == nullptr) first = &tensor;
      require<DeviceError>(device == first->value.device(), tensor.name, " is on ", device.str(), " and ", first->name,
                           " on ", first->value.device().str(), ", expected one device for the whole module");
      const std::string strides = tensor.value.is_contiguous() ? "" : concat(" of strides ", tensor.value.strides());
      descriptions.push_back(
          concat(kind, tensor.name, " ", shape_text(tensor.value), strides, device.is_cpu() ? "" : " on cuda"));
    };
    for (const NamedTensorRef& parameter : tensors.parameters)
      describe(parameter.value.requires_grad() ? "" : "frozen ", parameter);
    for (const NamedTensorRef& buffer : tensors.buffers) describe("buffer ", buffer);
    const DuetWork work(first == nullptr ? at::Device(at::kCPU) : first->value.device());
    if (Recovery::instance().is_void()) return group;  // a process that joins gets the state of the same model
    const Lasting::Hold in_state = Recovery::instance().exchange_state();
    ddp::require_same_model(group, descriptions);
    return group;
  }

  static std::vector<NamedTensorRef> trained(const std::vector<NamedTensorRef>& parameters) {
    std::vector<NamedTensorRef> list;
    // Reverse registration is about the order in which gradients arrive.
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter)
      if (parameter->value.requires_grad()) list.push_back(*parameter);
    require<UsageError>(!list.empty(),
                        "DistributedDataParallel is not needed when a module doesn't have any parameter that requires "
                        "a gradient.");
    return list;
  }

  at::Tensor& gradient(std::size_t i) { return layout_.parameters()[i].value.mutable_grad(); }

  void broadcast_parameters_and_buffers(int root) {
    for (const at::Tensor& parameter : parameters_) broadcast_together(group_, {parameter}, root);
    broadcast_together(group_, buffers_, root);
  }

  /// Called by what comes first in each backward.
  void follow_backward() {
    if (backward_.expected()) return;
    backward_.expect([this, gate = gate_] { gate->call([this] { backward_ended(); }); });
    // Gradients that were set to none were dropped, and the batches that they came from with them.
    bool left = false;
    for (std::size_t i = 0; i < accumulated_.size(); ++i) {
      if (accumulated_[i] && !gradient(i).defined()) accumulated_[i] = 0;
      left = left || accumulated_[i];
    }
    if (!left) ++drops_;
    synchroniser_.weights()->backward_begins(drops_);
    weighed_ = false;
    synchronises_ = synchroniser_.synchronises();
    if (!synchronises_) return;
    synchroniser_.backward_begins();
    if (!options_.local_steps && !synchroniser_.joining())
      group_.set_batch({.done = {.numbers = {synchroniser_.weights()->forwards(), -1, -1}}});
  }

  void gradient_ready(std::size_t i) {
    if (in_block_.lasts()) return;
    const c10::DeviceGuard guard(layout_.device());
    require<UsageError>(options_.blocks == 0 || !synchroniser_.synchronises(),
                        "with blocks, a step is made by backward_in_blocks()");
    follow_backward();
    if (!synchronises_) {
      synchroniser_.reducer().require_expected(static_cast<int>(i));
      accumulated_[i] = 1;
      return;
    }
    if (options_.rule == ddp::GradientRule::rows && group_.size() > 1 && !std::exchange(weighed_, true))
      scale_ = synchroniser_.weights()
                   ->exchange(group_, {.normalisers = kOwnRows, .local_steps = options_.local_steps})
                   .value;
    put_in_place(i);
    const DuetWork work(layout_.device());
    synchroniser_.reducer().mark_ready(static_cast<int>(i));
  }

  /// Scales a gradient and moves it into the flat memory, in one pass, where it is not there already.
  void put_in_place(std::size_t i) {
    const at::NoGradGuard no_grad;
    at::Tensor& own = gradient(i);
    const std::string& name = layout_.parameters()[i].name;
    at::Tensor place = gradients_[i];
    if (!own.defined()) {  // backward gave none
      place.zero_();
      return;
    }
    require<UsageError>(own.layout() == at::kStrided, "the gradient of ", name, " is sparse: duet sums dense ones");
    if (gradients_.holds(i, own)) {
      if (scale_ != 1) scale_ == 0 ? own.zero_() : own.mul_(scale_);
      return;
    }
    require<UsageError>(!own.requires_grad(), "the gradient of ", name,
                        " has a graph of its own (create_graph): its sum over the ranks would have none");
    require<UsageError>(own.scalar_type() == gradients_[i].scalar_type() && own.sizes() == gradients_[i].sizes(),
                        "the gradient of ", name, " is ", shape_text(own), ", expected ", shape_text(gradients_[i]),
                        ": the module was converted after it was wrapped");
    scale_ == 0 ? place.zero_() : at::mul_out(place, own, at::native::wrapped_scalar_tensor(scale_));
    own = place;
  }

  void backward_ended() {
    if (!synchronises_ || in_block_.lasts()) return;
    const DuetWork work(layout_.device());
    const auto goes_along = [&](int slot) {
      const auto i = static_cast<std::size_t>(slot);
      const bool has = gradient(i).defined() && (accumulated_[i] || options_.find_unused_parameters);
      if (has) {
        put_in_place(i);
        work.after_torch();
      }
      return has;
    };
    end_backward(goes_along, work);
  }

  /// At the end of a backward that is synchronised.
  void end_backward(FunctionRef<bool(int slot)> goes_along, const DuetWork& work) {
    Recovery& recovery = Recovery::instance();
    // An earlier wrapper, or an earlier backward of the step, has recovered.
    if (recovery.has_recovered()) return synchroniser_.abandon_backward();
    synchroniser_.backward_ended(goes_along);
    work.before_torch();
    take_sums();
    backwards_ += loop_ != nullptr;
    const std::int64_t step = steps(), every = options_.compare_parameters_every;
    if (every > 0 && !synchroniser_.joining() && step % every == 0) compare_parameters(step);
    if (loop_ == nullptr) return;
    broadcast_together(group_, buffers_, 0);  // else rank 0 alone would have those of a complete step
    if (!recovery.is_void()) return recovery.complete_step();
    recovery.recover_if_void();
  }

  /// The parameters' gradients become the sums, where any rank had one.
  void take_sums() {
    for (std::size_t i = 0; i < accumulated_.size(); ++i) {
      accumulated_[i] = 0;
      if (synchroniser_.reducer().used(static_cast<int>(i)) && !gradients_.holds(i, gradient(i)))
        gradient(i) = gradients_[i];
    }
  }

  void compare_parameters(std::int64_t step) const {
    std::string lines;
    for (const NamedTensorRef& parameter : layout_.parameters()) {
      const at::Tensor value = parameter.value.detach().contiguous().cpu();
      ddp::add_hash(lines, {static_cast<const std::byte*>(value.data_ptr()), bytes_of(value)}, parameter.name);
    }
    ddp::require_same_values(group_, step, lines);
  }

  ddp::ProcessGroup& group_;
  const std::shared_ptr<ElasticLoop> loop_;
  DistributedDataParallelOptions options_;
  GradientLayout layout_;
  FlatGradients gradients_;
  std::vector<at::Tensor> parameters_, buffers_;  // the frozen ones, too
  std::vector<std::string> names_;                // of the parameters
  std::vector<char> kept_;                        // by parameter: an optimizer that is kept has it
  std::vector<NamedTensorRef> frozen_;
  std::vector<char> accumulated_;       // by parameter: under no_sync()
  bool synchronises_ = true;            // the backward that runs
  bool weighed_ = false;                // in it
  Lasting in_block_;                    // within backward_in_blocks()
  double scale_ = 1.0 / group_.size();  // factor of this rank's gradients; not of those of blocks
  int backwards_ = 0;                   // of the step in flight of an elastic job
  bool regroups_ = false;               // its ranks have a new process group
  std::uint64_t drops_ = 0;             // backward runs that found no accumulated gradients
  std::shared_ptr<HookGate> gate_ = std::make_shared<HookGate>();
  BackwardEnd backward_;
  ddp::GradientSynchroniser synchroniser_;
  GradientHooks hooks_;
};

}  // namespace duet::torch
