#include "ddp/nccl/rendezvous.h"

#include <cstdio>
#include <cstring>
#include <exception>

#include "ddp/nccl/check.h"
#include "ddp/shm/shared_segment.h"
#include "lib/base/environment.h"

namespace duet::ddp::nccl {
namespace {

constexpr Milliseconds kFailureWait{1000};
constexpr const char* kId = "nccl/id";
constexpr const char* kFailed = "nccl/failed";
constexpr const char* kGpu = "nccl/gpu";
constexpr const char* kStarted = "nccl/started";
constexpr const char* kHeaders = "nccl/headers";
constexpr const char* kShared = " shared";
constexpr const char* kShareVariable = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr int kSharesGpus = 23000;  // version from which ranks may share a GPU

std::string version_text(int version) { return concat(version / 10000, ".", version / 100 % 100, ".", version % 100); }

int loaded_version() {
  int version = 0;
  check(ncclGetVersion(&version));
  require<DeviceError>(version / 10000 == NCCL_MAJOR, "NCCL ", version_text(version),
                       " was found, but duet was built for NCCL ", NCCL_MAJOR);
  return version;
}

/// "0000:3b:00": its PCI bus id, which does not depend on CUDA_VISIBLE_DEVICES.
std::string bus_id(int gpu) {
  int domain = 0, bus = 0, device = 0;
  check(cudaDeviceGetAttribute(&domain, cudaDevAttrPciDomainId, gpu), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, gpu), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&device, cudaDevAttrPciDeviceId, gpu), "cudaDeviceGetAttribute");
  char text[48];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x", static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(device));
  return text;
}

/// NCCL's identity of a GPU: its bus id in older versions, which MIG partitions share; in newer ones the partition.
std::string identity(int gpu) {
  if (loaded_version() < kSharesGpus) return bus_id(gpu);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  std::string text = bus_id(gpu) + "/";
  for (const char byte : properties.uuid.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits;
  }
  return text;
}

/// Ranks may share a GPU if all of them allow it.
bool may_share() { return loaded_version() >= kSharesGpus && environment_variable(kShareVariable) == "1"; }

/// `places` by rank: "HOST GPU", and kShared behind it where the rank would share its GPU.
void refuse_shared(const std::vector<std::string>& places) {
  const auto place_of = [&](std::size_t rank) { return places[rank].substr(0, places[rank].rfind(kShared)); };
  for (std::size_t first = 0; first < places.size(); ++first) {
    std::vector<int> together;
    bool allowed = true;
    for (std::size_t rank = first; rank < places.size(); ++rank) {
      if (place_of(rank) != place_of(first)) continue;
      together.push_back(static_cast<int>(rank));
      allowed = allowed && places[rank].ends_with(kShared);
    }
    if (together.size() == 1 || allowed) continue;
    const int version = loaded_version();
    const std::string rule =
        version >= kSharesGpus ? concat("allows only with the environment variable ", kShareVariable, "=1 in all ranks")
                               : std::string("does not allow (2.30 and newer can)");
    throw DeviceError(concat(rank_names(together), " share one GPU, which NCCL ", version_text(version), " ", rule,
                             ": give every rank a GPU of its own, or use the backend gloo or shm"));
  }
}

}  // namespace

void Rendezvous::compare_gpus(int gpu, Milliseconds timeout) {
  const std::string place = identity(gpu);
  store_->set(concat(kHeaders, "/", rank_), "");  // so that the others never block on it
  store_->set(concat(kGpu, "/", rank_), concat(host_identity(), " ", place, may_share() ? kShared : ""));
  const std::vector<std::string> all = rank_keys(kGpu, size_);
  await_ranks(*store_, all, rank_, "come to NCCL", timeout);
  refuse_shared(store_->multi_get(all));
}

ncclUniqueId Rendezvous::share_id(Milliseconds timeout) {
  ncclUniqueId id{};
  const ncclResult_t made = rank_ == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
  if (made != ncclSuccess) {
    const std::string why = concat("rank 0 could not listen for its peers: ", text_of(made));
    store_->set(kId, why);
    throw CommError(why);
  }
  if (rank_ == 0) store_->set(kId, std::string(id.internal, sizeof id.internal));
  await_ranks(*store_, {kId}, rank_, "give NCCL's id", timeout);
  const std::string value = store_->get(kId);
  require<CommError>(value.size() == sizeof id.internal, value);
  std::memcpy(id.internal, value.data(), value.size());
  return id;
}

void Rendezvous::publish_started(std::uint64_t count) {
  store_->set(concat(kStarted, "/", rank_), std::to_string(count));
}

std::string Rendezvous::ranks_before(std::uint64_t number) {
  std::vector<int> late;
  try {
    for (int rank = 0; rank < size_; ++rank) {
      const std::string key = concat(kStarted, "/", rank);
      if (rank == rank_ || (store_->check({key}) && std::stoull(store_->get(key)) > number)) continue;
      late.push_back(rank);
    }
  } catch (const CommError&) {
    return {};
  }
  return rank_names(late);
}

std::vector<std::string> Rendezvous::exchange_headers(const std::string& own) {
  store_->set(concat(kHeaders, "/", rank_), own);
  return store_->multi_get(rank_keys(kHeaders, size_));
}

void Rendezvous::publish_failure(const std::string& why) noexcept {
  try {
    store_->compare_set(kFailed, "", why);
  } catch (const std::exception&) {  // the others fail by NCCL or by their timeout
  }
}

std::string Rendezvous::wait_for_failure() noexcept {
  try {
    store_->wait({kFailed}, kFailureWait);
    return store_->get(kFailed);
  } catch (const std::exception&) {
    return {};
  }
}

std::string Rendezvous::failure() { return store_->check({kFailed}) ? store_->get(kFailed) : ""; }

}  // namespace duet::ddp::nccl
