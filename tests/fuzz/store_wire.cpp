// Frames of the store, and the texts in which ranks exchange their collectives.
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/store/tcp_store_wire.h"
#include "tests/fuzz/input.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

void read_frame(const std::string& body) {
  StoreFrame frame;
  if (!decode(body, frame)) return;
  const std::string again = encode(frame);
  expect(again.substr(sizeof(std::uint32_t)) == body, "a frame that is written as it was read");
  expect(decode_length(again) == body.size(), "a frame's length in front of it");
}

/// A log of three collectives; the same in every call.
const CallLog& log() {
  static const CallLog filled = [] {
    static float memory[3] = {};
    CallLog made;
    for (const std::int64_t count : {1, 2, 3})
      made.add({.op = Collective::all_reduce, .in = {memory, count, DType::f32}});
    return made;
  }();
  return filled;
}

void read_told(Input& input) {
  std::vector<std::string> texts = {CallLog(log()).text()};
  while (!input.empty() && texts.size() < 4) {
    std::string text = input.text();
    if (input.flag()) text = texts[0].substr(0, input.below(texts[0].size() + 1)) + text;
    texts.push_back(text);
  }
  log().difference(texts, static_cast<int>(input.below(texts.size())));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  if (input.flag())
    read_told(input);
  else
    read_frame(input.rest());
  return 0;
}
