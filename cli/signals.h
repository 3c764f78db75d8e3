// Ctrl-C and SIGTERM: noticed now, acted upon at the end of the step.
#pragma once

namespace duet::cli {

/// From now on the first SIGINT or SIGTERM is only noted; a second one ends the process at once.
void note_signals();
/// The signal that was noted, or 0.
int noted_signal();

}  // namespace duet::cli
