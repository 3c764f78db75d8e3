// Parts of a program's own in an elastic job, whose lost ranks are replaced: see docs/elasticity.md.
#pragma once

#include <functional>

namespace duet::elastic {

/// Runs what ranks do together between two steps of a training, such as an evaluation of which each has a part, or a
/// checkpoint that all wait for. In an elastic job it is done as a whole: where a rank is lost within it, its
/// collectives throw CommError, which this catches, and `body` runs again on all ranks that have not completed it; so
/// it must leave what it has read as it was until its last collective has ended. All ranks call it in the same order,
/// with a collective of all in it. Elsewhere it only calls `body`. Throws UsageError within a step, and what `body`
/// throws.
void unit(const std::function<void()>& body);

}  // namespace duet::elastic
