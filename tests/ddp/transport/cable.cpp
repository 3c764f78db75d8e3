// A cable between two network namespaces that is slow and loses packets, on kernels without netem.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>

#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/worker.h"

using namespace duet;
using duet::ddp::Descriptor;

namespace duet_test {
namespace {

std::atomic<bool> broken{false}, over{false};

/// The device "cable" of a namespace; packets of its network are read and written here.
Descriptor open_end(const std::string& space) {
  const Descriptor place(::open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC));
  bool good = place.open() && ::setns(place.get(), CLONE_NEWNET) == 0;
  Descriptor end(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));  // stays with the namespace of this moment
  ifreq wanted{};
  std::strcpy(wanted.ifr_name, "cable");
  wanted.ifr_flags = IFF_TUN | IFF_NO_PI;
  good = good && end.open() && ::ioctl(end.get(), TUNSETIFF, &wanted) == 0;
  require<UsageError>(good, "there can be no cable in ", space, ": ", last_errno);
  return end;
}

struct Packet {
  Clock::time_point due;
  std::size_t to;
  std::string bytes;
};

}  // namespace

void run_cable(const Arguments& arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int signal : {SIGUSR1, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = [](int which) {
      if (which == SIGUSR1)
        broken = !broken;
      else
        over = true;
    };
    ::sigaction(signal, &action, nullptr);
  }
  const std::array<Descriptor, 2> ends = {open_end(arguments.at(1)), open_end(arguments.at(2))};
  const std::chrono::milliseconds delay(std::stoi(arguments.at(3)));
  const int lost_of = std::stoi(arguments.at(4));  // one packet of so many; 0: none
  std::printf("ready\n");
  std::fflush(stdout);
  std::deque<Packet> queue;
  std::array<char, 65536> bytes;
  int passed = 0, lost = 0;
  std::array<pollfd, 2> polls = {pollfd{ends[0].get(), POLLIN, 0}, pollfd{ends[1].get(), POLLIN, 0}};
  while (!over) {
    while (!queue.empty() && queue.front().due <= Clock::now()) {
      const Packet& first = queue.front();
      if (::write(ends[first.to].get(), first.bytes.data(), first.bytes.size()) < 0) ++lost;  // the device is down
      queue.pop_front();
    }
    const auto left = queue.empty() ? std::chrono::milliseconds(100)
                                    : std::chrono::ceil<std::chrono::milliseconds>(queue.front().due - Clock::now());
    ::poll(polls.data(), polls.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    for (std::size_t from = 0; from < ends.size(); ++from)
      for (ssize_t got = 0; (got = ::read(ends[from].get(), bytes.data(), bytes.size())) > 0;) {
        const bool loses = broken || (lost_of > 0 && (passed + lost) % lost_of == lost_of - 1);
        ++(loses ? lost : passed);
        if (!loses) queue.push_back({Clock::now() + delay, 1 - from, {bytes.data(), static_cast<std::size_t>(got)}});
      }
  }
  std::printf("%d passed, %d lost\n", passed, lost);
}

}  // namespace duet_test
