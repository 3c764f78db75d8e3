// Boost.Asio, for the .cpp files of ddp that open sockets; no public header includes this.
#pragma once

// Each io_context here runs on one thread, so handlers need no fences, which the thread sanitizer does not support.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

// The order matters: Boost 1.74's Asio does not include <utility>.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
