// A header of another project, with the name of one of duet's: neither may be taken for the other.
#pragma once

namespace outside {
inline constexpr bool kOwnHeader = true;
}
