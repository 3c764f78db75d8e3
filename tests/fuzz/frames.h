// Frames of the store as a fuzzer makes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ddp/store/tcp_store_wire.h"
#include "tests/fuzz/input.h"

namespace duet_fuzz {

/// Well-formed, or any bytes. Codes are those below `codes`, timeouts a few ms.
inline std::string frame_of(Input& input, std::uint8_t codes) {
  if (input.take<std::uint8_t>() % 8 == 7) return input.text();
  duet::ddp::StoreFrame frame;
  frame.code = static_cast<std::uint8_t>(input.take<std::uint8_t>() % codes);
  frame.timeout_ms = input.take<std::int8_t>() % 4;
  const std::size_t count = input.below(7);
  for (std::size_t i = 0; i < count; ++i)
    frame.strings.push_back(input.flag() ? input.pick<std::string>({"a", "b", "1", "0", ""}) : input.text());
  return encode(frame);
}

/// A frame with its seal, which in one of eight is that of another place.
inline std::string sealed(Input& input, const std::string& frame, const std::string& key, const char* sender,
                          std::uint64_t number) {
  const std::uint64_t place = input.take<std::uint8_t>() % 8 == 7 ? number + 1 : number;
  const std::string body = frame.substr(std::min(frame.size(), sizeof(std::uint32_t)));
  return frame + duet::ddp::frame_seal(key, sender, place, body);
}

}  // namespace duet_fuzz
