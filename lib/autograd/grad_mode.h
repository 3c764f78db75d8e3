// Switches recording off for the calling thread.
#pragma once

namespace duet {

/// True unless a NoGrad lives on this thread.
bool grad_enabled();

/// While one lives, operators on its thread record nothing, and their results require no gradient.
class NoGrad {
 public:
  explicit NoGrad(bool active = true);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace duet
