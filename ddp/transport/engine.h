// How the collectives of a process group are carried out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ddp/group/process_group.h"
#include "ddp/transport/transport.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// Carries out collectives, one after the other, in two parts. The group holds a lock for each call but transport()'s.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Carries messages between two ranks, beside the collectives.
  virtual Transport& transport() = 0;
  /// Whether the threads that wait for a collective carry it out; else a communication thread does.
  virtual bool runs_in_waiters() const = 0;
  /// Shows the other ranks this rank's first contribution. Never waits.
  virtual void begin(const Call&, std::uint64_t /*sequence*/) {}
  /// Does the rest; a thread that waits may `spin` first, where the engine's ranks have a core each. Throws CommError.
  virtual void finish(const Call& call, std::uint64_t sequence, Clock::time_point deadline, bool spin) = 0;
  /// Waits until the other ranks need nothing more of this one, at most `timeout`; swallows errors.
  virtual void drain(Milliseconds timeout) = 0;
  /// Memory for ProcessGroup::shared_storage(), or null.
  virtual std::shared_ptr<Storage> shared_storage(std::size_t /*bytes*/) { return nullptr; }
  /// An engine of its own for some of the ranks; all of these call it.
  virtual std::unique_ptr<Engine> connect_subset(const Subset& subset) const = 0;
};

/// A process group whose collectives the engine carries out.
std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Engine> engine, const GroupOptions& options = {});
/// A process group whose collectives are made of messages over the transport.
std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Transport> transport, const GroupOptions& options = {});

}  // namespace duet::ddp
