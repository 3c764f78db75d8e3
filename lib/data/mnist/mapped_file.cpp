#include "lib/data/mnist/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>

namespace duet::data {

std::shared_ptr<Storage> map_file(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer would block
  if (file < 0) return nullptr;
  struct stat status {};
  void* memory = MAP_FAILED;
  std::size_t bytes = 0;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = static_cast<std::size_t>(status.st_size);
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {new Storage(Device{}, memory, bytes), [](Storage* storage) {
            ::munmap(storage->data(), storage->bytes());
            delete storage;
          }};
}

}  // namespace duet::data
