#include "lib/elastic.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "lib/base/recovery.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::elastic {
namespace {

std::set<std::string>& kept_names() {
  static std::set<std::string> all;
  return all;
}

class KeptState final : private Recoverable {
 public:
  KeptState(std::string name, StateMemory memory) : name_(std::move(name)), memory_(std::move(memory)) {
    require<UsageError>(!kept_names().contains(name_), "two states of an elastic job have the name '", name_, "'");
    join(concat("the state '", name_, "'"));
    kept_names().insert(name_);
  }
  ~KeptState() override {
    leave();
    kept_names().erase(name_);
  }

 private:
  bool is_copied() const override { return true; }
  bool is_watched() const override { return true; }
  void begin_step() override {
    require<UsageError>(!Recovery::instance().is_outside() || written_state(*this) == copied(), "the state '", name_,
                        "' has changed outside of steps and units of an elastic job, where a process that replaces a "
                        "lost rank would change it again: change it in the body of the loop over batches, or in "
                        "elastic::unit()");
  }

  void stream(StateStream& state) override {
    const std::uint64_t element = memory_.element, own = memory_.bytes().size() / element;
    std::uint64_t given_element = element, given = own;
    state.value(given_element);
    state.value(given);
    require<CommError>(given_element == element && (given == own || memory_.resize), "the state '", name_,
                       "' of another rank has ", given, " values of ", given_element, " bytes, expected ", own, " of ",
                       element);
    if (given != own) {
      state.require_left(given, element);
      memory_.resize(given);
    }
    state.bytes(memory_.bytes());
  }

  const std::string name_;
  const StateMemory memory_;
};

}  // namespace

void unit(const std::function<void()>& body) { Recovery::instance().run_unit(body); }

State keep_state(std::string name, StateMemory memory) {
  if (!Recovery::instance().expected()) return nullptr;
  return std::make_shared<KeptState>(std::move(name), std::move(memory));
}

State state(std::string name, Tensor& tensor) {
  require<UsageError>(tensor.defined() && tensor.device().kind == DeviceKind::cpu, "the state '", name,
                      "' is no tensor on CPU");
  return keep_state(std::move(name), {.element = size_of(tensor.dtype()), .bytes = [&tensor] {
                                        tensor.bump_version();
                                        return std::span(static_cast<std::byte*>(tensor.raw()), tensor.bytes());
                                      }});
}

}  // namespace duet::elastic
