#include "ddp/same_builds.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "ddp/launch/error_file.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

using Bytes = std::span<const std::byte>;
using Builds = std::map<std::string, std::string>;  // by path; that of the program is empty

Bytes bytes_of(const dl_phdr_info& file, const ElfW(Phdr) & part) {
  return {reinterpret_cast<const std::byte*>(file.dlpi_addr + part.p_vaddr), part.p_memsz};
}

/// The GNU build ID among notes; empty if there is none.
Bytes build_id(Bytes notes, std::size_t alignment) {
  const auto padded = [&](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  for (ElfW(Nhdr) note; notes.size() >= sizeof(note);) {
    std::memcpy(&note, notes.data(), sizeof(note));
    const std::size_t begin = sizeof(note) + padded(note.n_namesz), end = begin + note.n_descsz;
    if (end > notes.size()) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
        std::memcmp(notes.data() + sizeof(note), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0)
      return notes.subspan(begin, note.n_descsz);
    notes = notes.subspan(std::min(padded(end), notes.size()));
  }
  return {};
}

int note_build(dl_phdr_info* file, std::size_t, void* builds) {
  const std::span parts(file->dlpi_phdr, file->dlpi_phnum);
  std::uint64_t id = 0, content = 0;
  for (const ElfW(Phdr) & part : parts)
    if (part.p_type == PT_NOTE)
      if (const Bytes found = build_id(bytes_of(*file, part), part.p_align == 8 ? 8 : 4); !found.empty())
        id = mixed_bytes(found);
  for (const ElfW(Phdr) & part : parts)
    if (part.p_type == PT_LOAD && id == 0 && (part.p_flags & (PF_R | PF_W)) == PF_R)
      content = mixed(content, mixed_bytes(bytes_of(*file, part)));
  auto& noted = *static_cast<Builds*>(builds);
  noted.try_emplace(noted.empty() ? "" : file->dlpi_name, std::to_string(id == 0 ? content : id));
  return 0;
}

}  // namespace

void require_same_builds(Store& store, int process, int host) {
  Builds builds;
  ::dl_iterate_phdr(note_build, &builds);
  const auto name_of = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  std::erase_if(builds, [&](const auto& one) { return name_of(one.first).starts_with("linux-"); });  // the kernel's
  std::vector<std::string> keys, own;
  for (const auto& [path, build] : builds) {
    const std::string name = name_of(path);
    const bool everywhere = name.empty() || name.starts_with("libduet");
    keys.push_back(concat("build/", everywhere ? 0 : host, "/", name));
    own.push_back(build);
  }
  const std::vector<std::string> first = store.set_missing(keys, own);  // one round trip, as hosts may be far apart
  std::size_t number = 0;
  for (const auto& [path, build] : builds) {
    if (first[number++] == build) continue;
    std::error_code failed;
    const UsageError error(
        concat(path.empty() ? std::filesystem::read_symlink("/proc/self/exe", failed).string() : path, " of process ",
               process, " is another build than the other processes of the job run: start the job again"));
    leave_error(error);  // else this would count as another lost rank
    throw error;
  }
}

}  // namespace duet::ddp
