// The store in a file that other processes have written, in any state.
#include "ddp/store/file_store.h"

#include <cstdint>
#include <string>

#include "tests/fuzz/memory_file.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

void use(FileStore& store, Input& input) {
  const std::string key = input.flag() ? input.pick<std::string>({"a", "b", "/duet/closed"}) : input.text();
  switch (input.take<std::uint8_t>() % 8) {
    case 0: return store.set(key, input.text());
    case 1: return void(store.add(key, input.take<std::int64_t>()));
    case 2: return store.append(key, input.text());
    case 3: return void(store.delete_key(key));
    case 4: return void(store.compare_set(key, input.text(), input.text()));
    case 5: return void(store.multi_get({key, "a"}));
    case 6: return store.wait({key}, Milliseconds(0));
    default: return void(store.check({key}));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  Input input(data, size);
  std::string log = input.flag() ? "" : "duet-store-log-1\n";
  const std::size_t records = input.below(8);
  for (std::size_t i = 0; i < records; ++i) {  // lengths that fit, and contents of any kind
    const std::string run = input.flag() ? "run" : input.text(), key = input.text(), value = input.text();
    log += input.flag() ? 's' : static_cast<char>(input.take<std::uint8_t>());
    for (const std::string* part : {&run, &key, &value}) {
      const auto bytes = static_cast<std::uint32_t>(part->size());
      log.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    }
    log += run + key + value;
  }
  log += input.text();
  file.write(log);

  accepted([&] {
    FileStore store(file.path(), "run", 0, Milliseconds(0));
    for (int i = 0; i < 8 && !input.empty(); ++i) accepted([&] { use(store, input); });
    FileStore other(file.path(), "run", 0, Milliseconds(0));
    expect(store.num_keys() == other.num_keys(), "one content for all readers of the file");
    expect(store.check({"a"}) == other.check({"a"}), "the same keys for all readers of the file");
  });
  return 0;
}
