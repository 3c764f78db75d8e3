// PyTorch's store as duet's.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "ddp/store/store.h"
#include "lib/error.h"

namespace duet::torch {

/// A c10d::Store for duet's rendezvous. It keeps the store's timeout, and as much of its thread safety. Any
/// client of the store can read the ranks' secret in it.
class C10dStore final : public ddp::Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : Store(store->getTimeout()), store_(std::move(store)) {}

  std::vector<std::string> request(ddp::StoreOp op, std::vector<std::string> strings,
                                   ddp::Milliseconds timeout) override {
    try {
      return answer(op, strings, timeout);
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      throw CommError(concat("PyTorch's store: ", error.what_without_backtrace()));
    } catch (const std::exception& error) {
      throw CommError(concat("PyTorch's store: ", error.what()));
    }
  }

 private:
  std::vector<std::string> answer(ddp::StoreOp op, const std::vector<std::string>& in, ddp::Milliseconds timeout) {
    using ddp::StoreOp;
    std::vector<std::string> values;
    switch (op) {
      case StoreOp::set:
      case StoreOp::post:
        for (std::size_t i = 0; i + 1 < in.size(); i += 2) store_->set(in[i], in[i + 1]);
        return {};
      case StoreOp::wait: await(in, timeout); return {};
      case StoreOp::get:
      case StoreOp::take:
        await(in, timeout);
        for (const std::string& key : in) values.push_back(store_->get_to_str(key));
        for (std::size_t i = 0; op == StoreOp::take && i < in.size(); ++i) store_->deleteKey(in[i]);
        return values;
      case StoreOp::add: return {std::to_string(store_->add(in.at(0), std::stoll(in.at(1))))};
      case StoreOp::check: return {store_->check(in) ? "1" : "0"};
      case StoreOp::compare_set:
        for (std::size_t i = 0; i < in.size(); i += 3)
          values.push_back(store_->compareSet(in.at(i), in.at(i + 1), in.at(i + 2)));
        return values;
      case StoreOp::erase: return {store_->deleteKey(in.at(0)) ? "1" : "0"};
      case StoreOp::count: return {std::to_string(store_->getNumKeys())};
      case StoreOp::erase_prefix: return {"0"};  // PyTorch's stores cannot list their keys
      case StoreOp::append: break;
    }
    store_->append(in.at(0), {in.at(1).begin(), in.at(1).end()});
    return {};
  }

  void await(const std::vector<std::string>& keys, ddp::Milliseconds timeout) {
    try {
      store_->wait(keys, timeout);
    } catch (const std::exception&) {
      std::string missing;
      for (const std::string& key : keys)
        if (!store_->check({key})) missing += (missing.empty() ? "" : ", ") + key;
      if (missing.empty()) throw;
      throw CommError(
          concat("waited ", timeout.count(), " ms for the store's keys ", missing, ", which no rank has set"));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace duet::torch
