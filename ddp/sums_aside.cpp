#include "ddp/sums_aside.h"

#include <utility>

#include "lib/backend/backend.h"
#include "lib/base/recovery.h"

namespace duet::ddp {

SumsAside::Aside* SumsAside::at(int slot) {
  const auto found = sums_.find(slot);
  return found != sums_.end() && store_.is_aside(slot) ? &found->second : nullptr;
}

void SumsAside::begin() {
  for (int slot = range_.first_slot; slot < end_slot(); ++slot) {
    if (store_.is_summed(slot)) {
      sums_.insert_or_assign(slot, Aside{.sum = std::as_const(store_).gradient(slot).clone()});
      store_.set_aside(slot);
    } else if (Aside* const aside = at(slot); aside != nullptr && aside->own.defined()) {
      copy(std::exchange(aside->own, {}), store_.gradient(slot));
    }
  }
}

void SumsAside::add_to_own() {
  for (auto& [slot, aside] : sums_) {
    if (!store_.is_aside(slot)) continue;
    const Tensor gradient = store_.gradient(slot);
    if (!store_.has_gradient(slot)) {
      copy(aside.sum, gradient);
      store_.set_summed(slot);
      continue;
    }
    aside.own = gradient.clone();
    backend(gradient).add(aside.sum, gradient, gradient);
  }
}

bool SumsAside::add_to(int slot, bool used) {
  const Aside* const aside = at(slot);
  if (aside == nullptr) return used;
  const Tensor gradient = store_.gradient(slot);
  used ? backend(gradient).add(aside->sum, gradient, gradient) : copy(aside->sum, gradient);
  return true;
}

void SumsAside::begin_free() {
  for (int slot = range_.first_slot; slot < end_slot(); ++slot) {
    if (!store_.has_gradient(slot) || store_.is_summed(slot)) continue;
    if (at(slot) == nullptr) sums_.insert_or_assign(slot, Aside{});
    Aside& aside = sums_.at(slot);
    if (!aside.own.defined()) aside.own = std::as_const(store_).gradient(slot).clone();
    store_.set_aside(slot);
  }
}

void SumsAside::end_free() {
  if (const Recovery& recovery = Recovery::instance(); recovery.is_void() || recovery.has_recovered())
    return store_.zero_grad(range_.first_slot, range_.slots);
  for (int slot = range_.first_slot; slot < end_slot(); ++slot) {
    Aside* const aside = at(slot);
    if (aside == nullptr) {
      if (store_.has_gradient(slot)) store_.set_summed(slot);
      continue;
    }
    const Tensor gradient = store_.gradient(slot);
    if (store_.has_gradient(slot)) {
      if (aside->sum.defined()) backend(gradient).add(aside->sum, gradient, gradient);
      aside->sum = gradient.clone();
      backend(gradient).add(aside->own, gradient, gradient);
    }
    store_.set_filled(slot);
    if (!aside->sum.defined()) sums_.erase(slot);
  }
}

}  // namespace duet::ddp
