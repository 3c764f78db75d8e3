// Parts of a program's own in an elastic job, whose lost ranks are replaced: see docs/reference/elastic_loops.md.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace duet {
class Tensor;
}

namespace duet::nn {
class Module;
}

namespace duet::elastic {

/// Runs what ranks do together between two steps of a training, such as an evaluation of which each has a part, or a
/// checkpoint that all wait for. In an elastic job it is done as a whole: where a rank is lost within it, its
/// collectives throw CommError, which this catches, and `body` runs again on all ranks that have not completed it; so
/// it must leave what it has read as it was until its last collective has ended, save parameters, buffers, optimizers,
/// schedules and values of state(), which are put back. All ranks call it in the same order, with a collective of all
/// in it. Elsewhere it only calls `body`. Throws UsageError within a step, and what `body` throws.
void unit(const std::function<void()>& body);

/// While it or a copy of it lives, a value of the program's own is part of the training. Null outside of elastic jobs.
using State = std::shared_ptr<const void>;

/// The memory of a value, of which the elements have `element` bytes.
struct StateMemory {
  std::size_t element = 1;
  std::function<std::span<std::byte>()> bytes;
  std::function<void(std::size_t elements)> resize{};  // empty: the size stays
};
[[nodiscard]] State keep_state(std::string name, StateMemory memory);

template <class T>
concept Plain =
    std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_pointer_v<T> && !std::ranges::view<T>;
/// A std::vector or std::string of such values.
template <class T>
concept PlainSequence = std::ranges::contiguous_range<T> && Plain<std::ranges::range_value_t<T>> &&
    requires(T& values, std::size_t count) {
  values.resize(count);
};

/// Makes a value of the program's own, such as a counter, the best accuracy so far, or a list of losses, part of a
/// training in an elastic job: where the step in flight is done again it is as it was when that began, and a process
/// that replaces a lost one gets it with the rest of the training, from any other rank: it is alike on all. It must
/// outlive what this returns, which all ranks make in the same order, before the first pass over the loader or the
/// first step:
///
///     double best = 0;
///     const elastic::State kept = elastic::state("best", best);
///
/// It may change within steps, also behind the optimizer's, and within units; a change elsewhere throws UsageError in
/// the next step or unit, because a process that comes later would make it a second time. Counters of loops are not
/// kept: a new process runs through these. Throws UsageError for a name that another value has, CommError in a process
/// that gets another value, or one of another size, than it has under this name. Used by the thread that trains.
template <Plain T>
[[nodiscard]] State state(std::string name, T& value) {
  return keep_state(std::move(name),
                    {.element = sizeof(T), .bytes = [&value] { return std::as_writable_bytes(std::span(&value, 1)); }});
}
/// Of any length.
template <PlainSequence T>
[[nodiscard]] State state(std::string name, T& values) {
  return keep_state(std::move(name), {.element = sizeof(std::ranges::range_value_t<T>),
                                      .bytes = [&values] { return std::as_writable_bytes(std::span(values)); },
                                      .resize = [&values](std::size_t count) { values.resize(count); }});
}
/// A tensor on CPU, such as a running mean, whose elements are kept in its own memory.
[[nodiscard]] State state(std::string name, Tensor& tensor);
/// The parameters and buffers of a module that no DistributedDataParallel wraps, such as an average of the trained one.
[[nodiscard]] State state(std::string name, nn::Module& module);

}  // namespace duet::elastic
