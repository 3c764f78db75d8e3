#include "lib/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace duet {

void open_closed_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number)
    if (::fcntl(number, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // gets the lowest free number, which is this one
}

}  // namespace duet
