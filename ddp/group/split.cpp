// Groups within a group, and the barrier that names the missing ranks: both rendezvous in the store.
#include <algorithm>
#include <locale>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/group/gather_text.h"
#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

struct Place {
  int color = 0, key = 0, rank = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::split(int color, int key) {
  require_store("split");
  const std::vector<std::string> texts = all_gather_texts(*this, concat(color, " ", key));
  std::vector<Place> members;
  for (int rank = 0; rank < size_; ++rank) {
    Place place{.rank = rank};
    std::istringstream numbers(texts[static_cast<std::size_t>(rank)]);
    numbers.imbue(std::locale::classic());  // in another one a blank may be within a number
    numbers >> place.color >> place.key;
    if (place.color == color) members.push_back(place);
  }
  const int number = splits_++;
  if (color < 0) return nullptr;
  std::stable_sort(members.begin(), members.end(), [](const Place& a, const Place& b) { return a.key < b.key; });
  Subset subset;
  for (const Place& place : members) {
    if (place.rank == rank_) subset.rank = subset.size();
    subset.ranks.push_back(place.rank);
  }
  subset.name = concat("duet/split/", number, "/", color, "/");
  subset.store = std::make_shared<PrefixStore>(store_, subset.name, subset.size());
  auto group = connect_subset(subset);
  group->set_store(subset.store);
  if (recorder_) group->set_flight_recorder(recorder_, subgroup_number(recorded_as_, subset.name));
  return group;
}

std::unique_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  const std::vector<std::string> lists = all_gather_texts(*this, rank_names(ranks));
  for (int rank = 0; rank < size_; ++rank) {
    const std::string& list = lists[static_cast<std::size_t>(rank)];
    require<UsageError>(list == lists[0], "new_group: rank 0 names ", lists[0], ", rank ", rank, " names ", list);
  }
  for (const int rank : ranks)
    require<UsageError>(rank >= 0 && rank < size_ && std::count(ranks.begin(), ranks.end(), rank) == 1,
                        "new_group: ", rank_names(ranks), " are not different ranks of the group's ", size_);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  return split(own == ranks.end() ? -1 : 0, static_cast<int>(own - ranks.begin()));
}

void ProcessGroup::monitored_barrier(Milliseconds timeout) {
  require_store("monitored_barrier");
  const auto keys_of = [this](int number) { return rank_keys(concat("duet/monitored_barrier/", number), size_); };
  const int number = monitored_barriers_++;
  const std::vector<std::string> keys = keys_of(number);
  store_->set(keys[static_cast<std::size_t>(rank_)], "");
  try {
    store_->wait(keys, timeout);
    // All ranks have left the barrier before: no rank waits for its keys any more.
    store_->delete_key(keys_of(number - 1)[static_cast<std::size_t>(rank_)]);
  } catch (const CommError&) {
    const std::vector<int> missing = ranks_without_key(*store_, keys);
    if (missing.empty()) throw;
    throw CommError(concat("[Rank ", rank_, "]: ", rank_names(missing), " failed to pass monitored_barrier in ",
                           timeout.count(), " ms"));
  }
}

void ProcessGroup::require_store(const char* what) const {
  require<UsageError>(store_ != nullptr, what, ": this group has no store, see set_store()");
}

}  // namespace duet::ddp
