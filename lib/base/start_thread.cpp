#include "lib/base/start_thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "lib/base/text.h"
#include "lib/error.h"

namespace duet {
namespace {

/// The first line of a file; empty if it cannot be read.
std::string line_of(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// The control group of this process, or one above it, that is full; empty if none is.
std::string full_control_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b", or "8:pids:/a/b"
    const std::size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    const std::string controller = line.substr(name, path - name - 1);
    if (!controller.empty() && controller != "pids") continue;
    const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (std::string group = line.substr(path);; group.erase(group.rfind('/'))) {
      const std::string most = line_of(root + group + "/pids.max"), now = line_of(root + group + "/pids.current");
      if (!most.empty() && most != "max" && !now.empty() && std::stoll(now) >= std::stoll(most))
        return concat("the control group ", group.empty() ? "/" : group, " has reached its pids.max of ", most);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return {};
}

/// Adds up, in bytes, the most address space that was used and what the stack of another thread takes. What is used now
/// can be less than when the thread was refused, as other threads have ended since.
std::size_t address_space_for_one_more() {
  std::size_t most = 0, stack = 0, guard = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; most == 0 && status >> word;) {
    if (word == "VmPeak:") status >> most;  // KiB
  }
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack);
    ::pthread_attr_getguardsize(&attributes, &guard);
    ::pthread_attr_destroy(&attributes);
  }
  return most * 1024 + stack + guard;
}

/// Whether the kernel does not apply RLIMIT_NPROC: to root, but not to root of a user namespace.
bool is_machine_root() {
  std::istringstream users(line_of("/proc/self/uid_map"));
  uid_t inside = 1, outside = 1;
  return ::getuid() == 0 && users >> inside >> outside && inside == 0 && outside == 0;
}

}  // namespace

std::string which_thread_limit() {
  if (const std::string group = full_control_group(); !group.empty()) return group;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      address_space_for_one_more() > limit.rlim_cur)
    return concat("the address space is limited to ", limit.rlim_cur / 1024, " KiB (ulimit -v)");
  if (!is_machine_root() && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    return concat("this user may have ", limit.rlim_cur, " processes and threads (ulimit -u)");
  return concat("memory is short, or the machine's ", line_of("/proc/sys/kernel/threads-max"),
                " threads (kernel.threads-max) or ", line_of("/proc/sys/kernel/pid_max"),
                " process numbers (kernel.pid_max) are used up");
}

std::string cannot_start(std::string_view what, int error) {
  const std::string limit = error == EAGAIN ? ": " + which_thread_limit() : "";
  return concat("cannot start ", what, ": ", errno_text(error), limit);
}

void throw_no_thread(const std::string& what, const std::system_error& error) {
  throw Error(cannot_start(what, error.code().value()));
}

}  // namespace duet
