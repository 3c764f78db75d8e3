#include "model/all_reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "cli/system/display.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

// Payload of Ethernet's bytes with TCP and a frame of 1,500: 1,448 behind the headers of IP and TCP with its
// timestamps, of 1,538 on the wire with the frame's header, its check, preamble and gap (IEEE 802.3; RFC 793, 7323).
constexpr double kTcpPayload = 1448.0 / 1538;

constexpr const char* kTcpLatency =
    "10 us one way: Larsen et al., Architectural Breakdown of End-to-End Latency in a TCP/IP Network, IJPP 37 (2009), "
    "for 10GbE and Linux's stack";
constexpr const char* kNcclLatency = "NCCL, src/graph/tuning.cc, hwLat, ring, Simple (commit 01afd20a)";

}  // namespace

const char* name(Algorithm algorithm) {
  constexpr std::array kNames = {"ring", "tree", "recursive_doubling", "one_shot", "direct"};
  return kNames.at(static_cast<std::size_t>(algorithm));
}

Crossings crossings(Algorithm algorithm, int ranks) {
  if (ranks < 2) return {};
  const double n = ranks, levels = std::floor(std::log2(n));
  const bool power = std::exp2(levels) == n;
  const double doublings = levels + (power ? 0 : 2), depth = levels + (power ? 0 : 1);
  switch (algorithm) {
    case Algorithm::ring: return {.latency = 2 * (n - 1), .bytes = 2 * (n - 1) / n};
    case Algorithm::tree: return {.latency = 2 * depth, .bytes = 2 * depth};
    case Algorithm::recursive_doubling: return {.latency = doublings, .bytes = doublings};
    case Algorithm::one_shot: return {.latency = 2 * (n - 1), .bytes = 2};  // a barrier looks at all other ranks
    case Algorithm::direct: return {.latency = 2, .bytes = 2 * (n - 1) / n};
  }
  throw UsageError("unknown algorithm of all_reduce");
}

double all_reduce_us(const Link& link, int ranks, double bytes) {
  if (ranks < 2) return 0;
  const Crossings times = crossings(link.algorithm, ranks);
  return times.latency * link.hop.latency_us + times.bytes * bytes / link.hop.bytes_per_us;
}

Link link_of(const MeasuredLink& measured, bool averaging) {
  const bool memory = measured.backend == "shm", nccl = measured.backend == "nccl";
  const Algorithm algorithm = memory ? Algorithm::one_shot : nccl ? Algorithm::ring : Algorithm::direct;
  const Crossings times = crossings(algorithm, measured.ranks);
  const TransferCost& cost = averaging && measured.averaging ? *measured.averaging : measured.cost;
  return {.hop = {.latency_us = cost.latency_us / times.latency, .bytes_per_us = cost.bytes_per_us * times.bytes},
          .algorithm = algorithm,
          .overlap_share = measured.overlap_share};
}

const std::vector<NamedLink>& named_links() {
  // Rates are of one direction, in bytes a microsecond (MB/s).
  static const std::vector<NamedLink> links = {
      {"pcie4",
       "PCI Express 4.0, 16 lanes",
       {.hop = {.latency_us = 5.7, .bytes_per_us = 16e3 * 16 / 8 * 128 / 130}, .algorithm = Algorithm::ring},
       concat("16 GT/s a lane, 128b/130b: PCI Express Base Specification 4.0; 5.7 us: ", kNcclLatency, ", PCI")},
      {"nvlink4",
       "NVLink 4, 18 links (H100)",
       {.hop = {.latency_us = 3.4, .bytes_per_us = 450e3}, .algorithm = Algorithm::ring},
       concat("900 GB/s in both directions: NVIDIA H100 datasheet; 3.4 us: ", kNcclLatency, ", NVLINK")},
      {"10gbe",
       "Ethernet, 10 Gbit/s",
       {.hop = {.latency_us = 10, .bytes_per_us = 1250 * kTcpPayload}},
       concat("10 Gbit/s: IEEE 802.3ae, 94.1 % of it TCP's payload; ", kTcpLatency)},
      {"100gbe",
       "Ethernet, 100 Gbit/s",
       {.hop = {.latency_us = 10, .bytes_per_us = 12500 * kTcpPayload}},
       concat("100 Gbit/s: IEEE 802.3ba, 94.1 % of it TCP's payload; ", kTcpLatency)},
      {"ndr",
       "InfiniBand NDR, 4 lanes",
       {.hop = {.latency_us = 9.6, .bytes_per_us = 50e3}, .algorithm = Algorithm::ring},
       concat("400 Gbit/s: NVIDIA ConnectX-7 user manual; 9.6 us: ", kNcclLatency, ", NET")}};
  return links;
}

const NamedLink& named_link(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedLink& link : named_links()) {
    if (link.name == name) return link;
    names.push_back(link.name);
  }
  throw UsageError(concat("--link: unknown '", name, "', expected ", listed(names, "or")));
}

}  // namespace duet::cli
