// A shared object with a network, and, by the macro of its target, a mistake.
#include <cstdint>
#include <memory>
#include <stdexcept>

#include "lib/error.h"
#include "lib/nn/network_module.h"
#include "lib/nn/simple_cnn.h"
#include "lib/tensor.h"

using namespace duet;

namespace {

std::unique_ptr<nn::Module> make(const Shape&, std::int64_t) {
#ifdef THROWS
  throw std::runtime_error("no such table");
#elif defined(THROWS_OTHER)
  throw 7;
#elif defined(THROWS_OWN)
  throw UsageError("this network is for images of 64x64");
#elif defined(MAKES_NOTHING)
  return nullptr;
#else
  return std::make_unique<nn::LinearClassifier>();
#endif
}

#ifdef GIVES_NOTHING
constexpr bool kGives = false;
#else
constexpr bool kGives = true;
#endif

}  // namespace

#ifdef OTHER_NAME
extern "C" const nn::NetworkModule* my_network() {
#else
extern "C" const nn::NetworkModule* duet_network() {
#endif
#ifdef OTHER_VERSION
  static const nn::NetworkModule network{.version = "0.0.9", .make = make};
#elif defined(NO_SHAPE)
  static const nn::NetworkModule network{.make = make};
#else
static const nn::NetworkModule network{.sample_shape = {1, 28, 28}, .gives_log_probabilities = true, .make = make};
#endif
  return kGives ? &network : nullptr;
}
