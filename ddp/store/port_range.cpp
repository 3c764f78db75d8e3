#include "ddp/store/port_range.h"

#include <algorithm>
#include <string_view>

#include "lib/base/environment.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {

PortRange parse_port_range(const std::string& text, const std::string& what) {
  constexpr int kMostPort = 65535;
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::string_view all = text;
  const int first = parse_number<int>(all.substr(0, dash)).value_or(0);
  const int last = parse_number<int>(all.substr(std::min(dash + 1, text.size()))).value_or(0);
  require<UsageError>(1 <= first && first <= last && last <= kMostPort, what, " is \"", text,
                      "\", expected FIRST-LAST, two ports from 1 to ", kMostPort, " as in 30000-30010");
  return {first, last, kPortRangeVariable};
}

PortRange port_range() {
  const auto text = environment_variable(kPortRangeVariable);
  return text ? parse_port_range(*text, concat("environment variable ", kPortRangeVariable)) : PortRange{};
}

std::string describe(const PortRange& ports) {
  if (ports.first == ports.last && !ports.limits()) return concat("port ", ports.first);
  return concat("any of the ports ", ports.first, "-", ports.last, ports.limits() ? " (" : "", ports.source,
                ports.limits() ? ")" : "");
}

}  // namespace duet::ddp
