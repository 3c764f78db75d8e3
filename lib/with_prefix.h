// Errors that say in which part of a larger piece of work they arose.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lib/error.h"

namespace duet {

/// Runs task; what it throws keeps its type and gets prefix() in front of its text. Other exceptions than duet's become
/// an Error with theirs nested in it.
template <class Prefix, class Task>
void with_prefix(Prefix&& prefix, Task&& task) {
  const auto text = [&](const std::exception& cause) { return concat(prefix(), cause.what()); };
  try {
    std::forward<Task>(task)();
  } catch (const ShapeError& cause) {
    throw ShapeError(text(cause), cause.where());
  } catch (const DeviceError& cause) {
    throw DeviceError(text(cause), cause.where());
  } catch (const NumericError& cause) {
    throw NumericError(text(cause), cause.where());
  } catch (const CommError& cause) {
    throw CommError(text(cause), cause.where());
  } catch (const DataError& cause) {
    throw DataError(text(cause), cause.where());
  } catch (const UsageError& cause) {
    throw UsageError(text(cause), cause.where());
  } catch (const std::exception& cause) {
    std::throw_with_nested(Error(text(cause)));
  }
}

}  // namespace duet
