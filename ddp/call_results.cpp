#include "ddp/call_results.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "ddp/group/call_header.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::ddp {

namespace {

constexpr std::chrono::milliseconds kLookPause{1};  // a spare process may be ahead of the rank

const Buffer& result_of(const Call& call) {
  const bool in_place = call.op == Collective::broadcast || call.op == Collective::all_reduce ||
                        call.op == Collective::reduce || call.op == Collective::recv;
  return in_place ? call.in : call.out;
}

/// A line that describes the call, and behind it the result.
std::string header_of_result(const Call& call) {
  const Buffer& common = common_buffer(call);
  return describe(call.op, common.count, common.dtype, call.reduce, call.root) + "\n";
}

}  // namespace

std::string CallResults::key() const { return concat("results/", rank_, "/", calls_); }

void CallResults::keep(const Call& call) {
  const Buffer& result = result_of(call);
  bytes_ += result.bytes();
  const bool is_message = call.op == Collective::send || call.op == Collective::recv;
  if (bytes_ > kMostBytes || is_message) bytes_ = kMostBytes + 1;  // what is behind it cannot be reached
  if (bytes_ > kMostBytes) return;
  std::string text = header_of_result(call);
  if (result.count > 0) {
    const Tensor on_host = tensor_of(result).to(Device{});
    text.append(static_cast<const char*>(on_host.raw()), result.bytes());
  }
  store_->set(key(), text);
  ++calls_;
}

void CallResults::repeat(const Call& call, FunctionRef<bool()> are_all_kept) {
  const std::string header = header_of_result(call);
  while (!are_all_kept() && !store_->check({key()})) std::this_thread::sleep_for(kLookPause);
  require<UsageError>(store_->check({key()}), name(call.op), " before the first step: rank ", rank_,
                      " replaces a lost one, of which no such result was kept: ", kMostBytes,
                      " bytes of results are, and no messages between two ranks");
  const std::string text = store_->get(key());
  const std::size_t end = text.find('\n') + 1;
  require<UsageError>(text.substr(0, end) == header, "rank ", rank_, " replaces a lost one, and calls ",
                      header.substr(0, header.size() - 1), " where that had called ", text.substr(0, end - 1));
  const Buffer& result = result_of(call);
  require<CommError>(text.size() - end == result.bytes(), "the store of the elastic job holds ", text.size() - end,
                     " bytes as the result of ", header.substr(0, header.size() - 1), ", expected ", result.bytes());
  if (result.count > 0) {
    const Tensor on_host = empty({result.count}, result.dtype);
    std::memcpy(on_host.raw(), text.data() + end, result.bytes());
    copy(on_host, tensor_of(result));
  }
  ++calls_;
}

}  // namespace duet::ddp
