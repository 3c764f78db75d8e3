// A network that `duet train|compare --model FILE.so` loads: a small one for colour images of any size.
//
//   g++ -std=c++20 -O2 -shared -fPIC own_network_module.cpp -o own_network.so $(pkg-config --cflags --libs duet)
//   duet compare --model ./own_network.so --devices 1,2
#include <cstdint>
#include <memory>

#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/nn/network_module.h>
#include <duet/lib/tensor.h>

using namespace duet;

namespace {

/// Batch norm over the batches of all devices: any number of them ends with the same bits.
class OwnNetwork : public nn::Sequential {
 public:
  OwnNetwork(std::int64_t channels, std::int64_t classes) {
    add<nn::Conv2d>(channels, 16, 3, nn::Conv2dOptions{.stride = 2, .padding = 1});
    add<nn::SyncBatchNorm>(16);
    add<nn::ReLU>();
    add<nn::AdaptiveAvgPool2d>(4, 4);
    add<nn::Flatten>();
    add<nn::Linear>(16 * 4 * 4, classes);
  }
};

std::unique_ptr<nn::Module> make(const Shape& sample, std::int64_t classes) {
  return std::make_unique<OwnNetwork>(sample[0], classes);
}

}  // namespace

extern "C" const nn::NetworkModule* duet_network() {
  static const nn::NetworkModule network{.sample_shape = {3, 32, 32}, .make = make};
  return &network;
}
