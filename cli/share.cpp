#include "cli/share.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "cli/info.h"
#include "compare/report/report.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/io/folder.h"
#include "train/measure/json_fields.h"
#include "train/system/files.h"

namespace duet::cli {
namespace {

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// The file or folder that a path names, without the folders above it.
std::string last_part(const std::string& path) {
  const std::string name = without_slashes_at_end(path);
  return name.size() > 1 ? name.substr(name.rfind('/') + 1) : name;
}

bool is_in_word(const std::string& text, std::size_t at) {
  return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
}

/// Puts `with` in place of `name` where that is no part of a longer word. What lies below a folder becomes a path that
/// begins with a slash.
void replace_all(std::string& text, const std::string& name, const std::string& with) {
  const bool folder = name.find('/') != std::string::npos;
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || !is_in_word(name, 0) || !is_in_word(text, at - 1);
    const std::string put = folder && end < text.size() && text[end] == '/' ? "/" + with : with;
    const bool fits = begins && !is_in_word(text, end);
    if (fits) text.replace(at, name.size(), put);
    at += fits ? put.size() : 1;
  }
}

/// Cuts paths that begin with /, ~ or a dot down to their last parts.
std::string with_short_paths(const std::string& text) {
  constexpr std::string_view kBetween = " \t\n\"'`,;:=()[]{}<>|";
  std::string out, word;
  const auto end_word = [&] {
    const bool path = word.find('/') != std::string::npos && std::string_view("/~.").find(word[0]) != std::string::npos;
    out += path ? last_part(word) : word;
    word.clear();
  };
  for (const char letter : text)
    if (kBetween.find(letter) == std::string_view::npos) {
      word += letter;
    } else {
      end_word();
      out += letter;
    }
  end_word();
  return out;
}

/// All texts in it, but not the names of its fields.
Json without(const PrivateNames& names, Json value) {
  if (value.is_string()) return without(names, value.get<std::string>());
  if (value.is_structured())
    for (Json& item : value) item = without(names, item);
  return value;
}

struct SharedFile {
  std::string name, text;
};

std::vector<SharedFile> files_of(const CompareOptions& options, Results results, const Machine& machine,
                                 const std::string& command_line) {
  const PrivateNames names = private_names(options);
  const std::string program = "duet";
  const std::string command = program + without(names, command_line.substr(program.size()));
  change_texts(results, [&](const std::string& text) { return without(names, text); });
  return {{"results.json", to_json(results)},
          {"index.html", to_html(results, command, options.time_budget_s)},
          {"info.json", text_of(without(names, parsed_json(info_json(machine))))},
          {"command.txt", command + "\n"}};
}

/// The name that rename() takes: it follows no link and refuses a slash at the end.
std::string resolved(const std::string& folder) {
  return is_folder(folder) ? std::filesystem::canonical(folder).string() : without_slashes_at_end(folder);
}

}  // namespace

PrivateNames private_names(const CompareOptions& options) {
  PrivateNames names;
  const auto add = [](auto& list, const std::string& name, const std::string& with) {
    if (name.size() > 1 && name != with) list.emplace_back(name, with);
  };
  for (const std::string* const path :
       {&options.model, &options.data, &options.config, &options.out, &options.share, &options.json, &options.vs_torch})
    if (path->find('/') != std::string::npos) add(names.paths, without_slashes_at_end(*path), last_part(*path));
  // A longer path may begin with a shorter one.
  std::sort(names.paths.begin(), names.paths.end(),
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  const passwd* const user = ::getpwuid(::geteuid());
  add(names.paths, without_slashes_at_end(environment_variable("HOME").value_or("")), "~");
  if (user) add(names.paths, without_slashes_at_end(user->pw_dir), "~");
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string whole = host.data();
  add(names.words, whole, "HOST");
  add(names.words, whole.substr(0, whole.find('.')), "HOST");
  if (user) add(names.words, user->pw_name, "USER");
  for (const char* const variable : {"USER", "LOGNAME", "SUDO_USER"})
    add(names.words, environment_variable(variable).value_or(""), "USER");
  return names;
}

std::string without(const PrivateNames& names, const std::string& text) {
  std::string out = text;
  for (const auto& [path, with] : names.paths) replace_all(out, path, with);
  out = with_short_paths(out);
  for (const auto& [word, with] : names.words) replace_all(out, word, with);
  return out;
}

void require_new_folder(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(folder, ignored))) {
    require<DataError>(is_folder(folder), "--share ", folder, ": is no folder, expected a new or an empty one");
    const std::vector<std::string> names = list_folder(folder);
    const auto first = std::min_element(names.begin(), names.end());
    require<DataError>(first == names.end(), "--share ", folder, ": holds ", first == names.end() ? "" : *first,
                       ", expected a new or an empty folder");
  }
  with_prefix([&] { return concat("--share ", folder, ": "); },
              [&] { require_writable(folder_of(resolved(folder)), 1 << 20); });
}

void share(const CompareOptions& options, const Results& results, const Machine& machine,
           const std::string& command_line) {
  const std::string place = resolved(options.share);
  const TemporaryFolder temporary(folder_of(place));  // on the same disk, for rename()
  const std::string made = temporary.path() + "/shared";
  make_folder(made);
  for (const SharedFile& file : files_of(options, results, machine, command_line))
    write_atomically(made + "/" + file.name, file.text);
  require<DataError>(std::rename(made.c_str(), place.c_str()) == 0, "--share ", options.share,
                     ": cannot be made: ", last_errno);
}

std::string results_file(const std::string& place) { return is_folder(place) ? place + "/results.json" : place; }

Results read_results(const std::string& file) {
  const std::string text = read_file(file);
  return with_prefix([&] { return file + ": "; }, [&] { return results_from_json(text); });
}

}  // namespace duet::cli
