// Descriptors 0, 1 and 2.
#pragma once

namespace duet {

/// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed. Without it the next file or pipe gets such a
/// number, and what is printed goes there. For main(), before anything is opened.
void open_closed_streams();

}  // namespace duet
