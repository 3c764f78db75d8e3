// What an all-reduce costs among any number of ranks: algorithms, and links with their published figures.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "model/cost_model.h"

namespace duet::cli {

enum class Algorithm {
  ring,                // NCCL's: 2 (n - 1) steps, each of bytes / n
  tree,                // up and down a binary tree, not pipelined
  recursive_doubling,  // everything exchanged in every step, and once more before and after where n is no power of 2
  one_shot,  // ddp/shm: 2 barriers, between them every rank reads its share of all buffers and writes it to all
  direct     // ddp/transport: 2 steps, a rank exchanges its share with all others at once
};
inline constexpr std::array kAlgorithms = {Algorithm::ring, Algorithm::tree, Algorithm::recursive_doubling,
                                           Algorithm::one_shot, Algorithm::direct};
const char* name(Algorithm algorithm);

/// How often an all-reduce among n ranks pays a link's latency, and how often its bytes cross a rank's link.
struct Crossings {
  double latency = 0, bytes = 0;
};
Crossings crossings(Algorithm algorithm, int ranks);

/// A link of every rank (or host) to all others, full duplex and without congestion. `hop` is one message's cost.
struct Link {
  TransferCost hop{};
  Algorithm algorithm = Algorithm::direct;
  double overlap_share = 1;  // of communication in which compute goes on
};

/// 0 for one rank.
double all_reduce_us(const Link& link, int ranks, double bytes);

/// The hop of a measured all-reduce, with the algorithm that duet uses over this backend; `averaging`: as mode
/// averaging calls it.
Link link_of(const MeasuredLink& measured, bool averaging = false);

/// A link that --link names.
struct NamedLink {
  std::string name, title;
  Link link{};
  std::string source;  // of its figures
};
const std::vector<NamedLink>& named_links();
/// Throws UsageError that lists the names.
const NamedLink& named_link(const std::string& name);

}  // namespace duet::cli
