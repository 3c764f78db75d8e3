// Files of tensors, as any program may have written them.
#include "lib/io/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/memory_file.h"

using namespace duet;
using namespace duet_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  Input input(data, size);
  const Checksum checksum = input.flag() ? Checksum::required : Checksum::if_present;
  const std::string content = input.rest();
  file.write(content);
  TensorFile read;
  if (!accepted([&] { read = load_tensors(file.path(), checksum); })) return 0;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : read.tensors) bytes += tensor.bytes();
  expect(bytes < content.size(), "tensors within the file");

  NamedTensors into;
  for (const auto& [name, tensor] : read.tensors) into.push_back({name, empty(tensor.shape(), tensor.dtype())});
  expect(accepted([&] { copy_by_name(read.tensors, into, "a file"); }), "tensors that fit themselves");
  return 0;
}
