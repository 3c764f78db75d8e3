#include "ddp/store/store.h"

#include <utility>

#include "ddp/store/secret.h"

namespace duet::ddp {

std::string Store::secret() { return compare_set("/duet/secret", "", random_bytes(kSecretBytes)); }

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string prefix)
    : Store(store->timeout()), store_(std::move(store)), prefix_(std::move(prefix)) {}

std::vector<std::string> PrefixStore::prefixed(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) names.push_back(prefix_ + key);
  return names;
}

void PrefixStore::set(const std::string& key, const std::string& value) { store_->set(prefix_ + key, value); }
std::string PrefixStore::get(const std::string& key) { return store_->get(prefix_ + key); }
void PrefixStore::wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  store_->wait(prefixed(keys), timeout);
}
std::int64_t PrefixStore::add(const std::string& key, std::int64_t amount) {
  return store_->add(prefix_ + key, amount);
}
bool PrefixStore::check(const std::vector<std::string>& keys) { return store_->check(prefixed(keys)); }
std::string PrefixStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return store_->compare_set(prefix_ + key, expected, desired);
}
bool PrefixStore::delete_key(const std::string& key) { return store_->delete_key(prefix_ + key); }
std::int64_t PrefixStore::num_keys() { return store_->num_keys(); }
void PrefixStore::append(const std::string& key, const std::string& suffix) { store_->append(prefix_ + key, suffix); }
std::vector<std::string> PrefixStore::multi_get(const std::vector<std::string>& keys) {
  return store_->multi_get(prefixed(keys));
}
void PrefixStore::multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  store_->multi_set(prefixed(keys), values);
}

}  // namespace duet::ddp
