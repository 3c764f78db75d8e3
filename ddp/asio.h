// Boost.Asio, for the .cpp files of ddp that open sockets; no public header includes this.
#pragma once

// The order matters: Boost 1.74's Asio forgets <utility>.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
