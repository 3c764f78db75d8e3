// Checkpoints of any content, damaged or not: what is accepted is what was written.
#include "lib/io/checkpoint.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/tensor.h"
#include "tests/fuzz/input.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_fuzz;

namespace {

NamedTensors tensors_of(Input& input) {
  NamedTensors tensors;
  const std::size_t count = input.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    const DType dtype = input.pick({DType::f32, DType::u8, DType::i64, DType::bf16});
    const Shape shape = {static_cast<std::int64_t>(input.below(4)), static_cast<std::int64_t>(input.below(3))};
    const Tensor tensor = empty(shape, dtype);
    if (tensor.bytes() > 0) std::memset(tensor.raw(), input.take<std::uint8_t>(), tensor.bytes());
    tensors.push_back({input.text(), tensor});
  }
  return tensors;
}

Metadata metadata_of(Input& input) {
  Metadata metadata;
  for (const char* key : {"epoch", "epoch_step", "step", "best_acc1", "arch"})
    if (!input.flag()) metadata[key] = input.text();
  const std::size_t more = input.below(3);
  for (std::size_t i = 0; i < more; ++i) metadata["setting." + input.text()] = input.text();
  return metadata;
}

bool damage(Input& input, std::string& content) {
  const std::string whole = content;
  const std::size_t changes = input.below(4);
  for (std::size_t i = 0; i < changes && !content.empty(); ++i) {
    const std::size_t at = input.below(content.size());
    content[at] = static_cast<char>(content[at] ^ input.take<char>());
  }
  if (input.flag()) content.resize(content.size() - input.below(content.size() + 1));
  content += input.text();
  return content != whole;
}

bool is_same(const NamedTensors& one, const NamedTensors& other) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const auto& [name, tensor] = one[i];
    const auto& [same_name, same] = other[i];
    if (name != same_name || tensor.shape() != same.shape() || tensor.dtype() != same.dtype()) return false;
    if (tensor.bytes() > 0 && std::memcmp(tensor.raw(), same.raw(), tensor.bytes()) != 0) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet_test::Scratch scratch;
  static const std::string whole = scratch.path("whole"), folder = scratch.path("run"),
                           newest = folder + "/checkpoint-00000002.safetensors",
                           older = folder + "/checkpoint-00000001.safetensors";
  static const bool made = accepted([] { prepare_checkpoint_folder(folder); });
  expect(made, "a folder");

  Input input(data, size);
  const Metadata metadata = metadata_of(input);
  if (!accepted([&] { save_tensors(whole, tensors_of(input), metadata); })) return 0;
  std::string content = duet_test::read_text(whole);
  const bool good = accepted([&] { load_checkpoint(whole); });
  const bool damaged = damage(input, content);
  duet_test::write_text(newest, content);
  ::unlink(older.c_str());
  if (input.flag()) duet_test::write_text(older, duet_test::read_text(whole));

  LoadedCheckpoint loaded;
  if (!accepted([&] { loaded = load_checkpoint(folder); })) {
    expect(damaged || !good, "an undamaged checkpoint that loads");
    return 0;
  }
  expect(good, "no checkpoint out of what was none");
  const Checkpoint expected = load_checkpoint(whole).checkpoint;
  const Checkpoint& got = loaded.checkpoint;
  expect(got.position == expected.position && got.step == expected.step && got.arch == expected.arch &&
             got.best_acc1 == expected.best_acc1 && got.settings == expected.settings,
         "the metadata that was written");
  expect(is_same(got.model, expected.model) && is_same(got.optimizer, expected.optimizer),
         "the tensors that were written");
  accepted([&] { restore(loaded, expected.arch, expected.model); });
  return 0;
}
