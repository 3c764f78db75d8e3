#include "lib/io/checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/io/atomic_file.h"
#include "lib/io/folder.h"
#include "lib/parse_number.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "checkpoint-";
constexpr std::string_view kEnding = ".safetensors";
constexpr std::string_view kBest = "model_best.safetensors";
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kSetting = "setting.";
constexpr const char* kSeries = "series";
constexpr const char* kEpochStep = "epoch_step";    // files of earlier versions lack it
constexpr const char* kEpochBatch = "epoch_batch";  // only within an epoch, where it is known
constexpr std::size_t kKept = 2;

struct CheckpointFile {
  std::int64_t step;
  fs::path path;
};

/// The checkpoints of a folder by name, newest first.
std::vector<CheckpointFile> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointFile> found;
  for (const std::string& name : list_folder(folder.string())) {
    if (!name.starts_with(kStem) || !name.ends_with(kEnding) || name.size() <= kStem.size() + kEnding.size()) continue;
    const auto step =
        parse_number<std::int64_t>(name.substr(kStem.size(), name.size() - kStem.size() - kEnding.size()));
    if (step && *step >= 0) found.push_back({*step, folder / name});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.step > b.step; });
  return found;
}

template <class T>
T metadata_number(const std::string& path, const Metadata& metadata, const std::string& key) {
  const auto entry = metadata.find(key);
  require<DataError>(entry != metadata.end(), path, " is not a checkpoint: __metadata__ has no \"", key, "\"");
  const auto number = parse_number<T>(entry->second);
  require<DataError>(number && *number >= 0, path, ": __metadata__ \"", key, "\" is \"", entry->second,
                     "\", expected a number of 0 or more");
  return *number;
}

std::string exact_text(double number) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end};
}

std::string_view without(std::string_view start, std::string_view name) {
  return name.starts_with(start) ? name.substr(start.size()) : name;
}

void check_arch(const std::string& path, const std::string& arch, const std::string& expected) {
  require<DataError>(arch == expected, path, " is of the model \"", arch, "\", expected \"", expected, "\"");
}

/// Throws DataError for a tensor that neither the model nor its optimizer has. restore() finds those that are missing.
void check_tensors(const std::string& path, std::span<const TensorInfo> tensors, const NamedTensors& model) {
  std::map<std::string, const Tensor*> inner;
  for (const auto& [name, tensor] : model) inner.emplace(without_wrappers(name), &tensor);
  for (const TensorInfo& given : tensors) {
    const bool of_optimizer = given.name.starts_with(kOptimizer);
    std::string name(without(kOptimizer, given.name));
    if (of_optimizer) name = name.substr(0, name.rfind('.'));  // "conv1.weight.exp_avg"
    name = without_wrappers(name);
    const auto own = inner.find(name);
    require<DataError>(own != inner.end(), path, " is of another model: it has the tensor \"", given.name,
                       "\" that this one lacks");
    if (given.name.ends_with(".step") && of_optimizer) continue;  // a number, which the optimizer checks
    require<DataError>(own->second->shape() == given.shape && own->second->dtype() == given.dtype, path,
                       " is of another model: \"", given.name, "\" is ", given.dtype, given.shape, ", expected ",
                       own->second->dtype(), own->second->shape());
  }
}

/// Throws DataError for a model whose checkpoint could not be written: each tensor also comes twice for the optimizer,
/// and its number of steps.
void require_storable_model(const std::string& folder, const NamedTensors& model) {
  std::vector<TensorInfo> all;
  for (const auto& [name, tensor] : model) {
    all.push_back({name, tensor.dtype(), tensor.shape()});
    for (const char* const part : {".exp_avg", ".exp_avg_sq", ".step"})
      all.push_back(
          {concat(kOptimizer, name, part), DType::f32, part == std::string_view(".step") ? Shape{} : tensor.shape()});
  }
  require_storable(concat("a checkpoint of this model in ", folder), std::move(all));
}

/// Whether a file announces more than a checkpoint of the model can hold: each tensor twice more for the optimizer, and
/// its number of steps.
bool is_larger(std::span<const TensorInfo> tensors, const NamedTensors& model) {
  std::uint64_t given = 0, own = 0;
  for (const TensorInfo& one : tensors) given += static_cast<std::uint64_t>(one.shape.count()) * size_of(one.dtype);
  for (const NamedTensor& one : model) own += 3 * one.tensor.bytes() + size_of(DType::f32);
  return given > own;
}

Checkpoint read_checkpoint(const std::string& path, const HeaderCheck& check) {
  TensorFile file = load_tensors(path, Checksum::required, check);
  Checkpoint checkpoint;
  checkpoint.position.epoch = metadata_number<std::int64_t>(path, file.metadata, "epoch");
  if (file.metadata.contains(kEpochStep))
    checkpoint.position.step = metadata_number<std::int64_t>(path, file.metadata, kEpochStep);
  if (file.metadata.contains(kEpochBatch))
    checkpoint.position.batch = metadata_number<std::int64_t>(path, file.metadata, kEpochBatch);
  checkpoint.step = metadata_number<std::int64_t>(path, file.metadata, "step");
  checkpoint.best_acc1 = metadata_number<double>(path, file.metadata, "best_acc1");
  checkpoint.arch = file.metadata["arch"];
  checkpoint.series = file.metadata[kSeries];
  for (const auto& [key, value] : file.metadata)
    if (key.starts_with(kSetting)) checkpoint.settings[key.substr(kSetting.size())] = value;
  for (auto& [name, tensor] : file.tensors) {
    if (name.starts_with(kOptimizer))
      checkpoint.optimizer.push_back({name.substr(kOptimizer.size()), std::move(tensor)});
    else
      checkpoint.model.push_back({name, std::move(tensor)});
  }
  return checkpoint;
}

/// Names the first parameter, buffer or number of an optimizer's that is not finite, and counts them; empty if none is.
std::string not_finite(const LoadedCheckpoint& loaded) {
  std::string first;
  std::size_t found = 0, all = 0;
  const auto look = [&](std::string_view start, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      ++all;
      if (tensor.dtype() != DType::f32) continue;
      const std::span<const float> numbers = tensor.span<float>();
      const auto wrong = std::ranges::find_if(numbers, [](float number) { return !std::isfinite(number); });
      if (wrong == numbers.end()) continue;
      if (found++ == 0)
        first = concat(start, name, " holds ", std::isnan(*wrong) ? "nan" : *wrong > 0 ? "inf" : "-inf");
    }
  };
  look("", loaded.checkpoint.model);
  look(kOptimizer, loaded.checkpoint.optimizer);
  if (found == 0) return {};
  return concat(loaded.path, ": ", first, "; ", found, " of ", all,
                " tensors are not finite, and a run that resumes from it keeps them");
}

/// Whether the header of a file can be read and names this series.
bool is_of_series(const std::string& path, const std::string& series) {
  bool same = false;
  try {
    load_tensors(path, Checksum::if_present, [&](std::span<const TensorInfo>, const Metadata& metadata) {
      const auto found = metadata.find(kSeries);
      same = (found == metadata.end() ? "" : found->second) == series;
      throw DataError("no more than the header is needed");
    });
  } catch (const DataError&) {
  }
  return same;
}

/// Removes what is older than the last two of a series. A file too many does no harm.
void prune(const std::string& folder, std::int64_t step, const std::string& series) {
  std::vector<CheckpointFile> older = list_checkpoints(folder);
  std::erase_if(older, [&](const CheckpointFile& found) { return found.step >= step; });
  if (older.size() < kKept) return;
  std::size_t kept = 1;
  for (const CheckpointFile& found : older) {
    if (!is_of_series(found.path.string(), series) || ++kept <= kKept) continue;
    std::error_code error;
    fs::remove(found.path, error);
  }
}

}  // namespace

FolderLock prepare_checkpoint_folder(const std::string& folder, std::int64_t step, const NamedTensors& model,
                                     const std::string& run) {
  require_storable_model(folder, model);
  require_writable(folder);
  FolderLock lock(folder, run);
  for (const std::string_view start : {kStem, kBest}) remove_abandoned_temporaries(folder, start);
  for (const CheckpointFile& found : list_checkpoints(folder)) {
    if (found.step <= step) break;
    bool valid = true, larger = false;
    try {
      read_checkpoint(found.path.string(), [&](std::span<const TensorInfo> tensors, const Metadata&) {
        larger = !model.empty() && is_larger(tensors, model);
        require<DataError>(!larger, "too large to be read");
      });
    } catch (const UnreadableFile&) {
      throw;  // it may be valid
    } catch (const DataError&) {
      valid = larger;  // a damaged one cannot be resumed: a run may write over it
    }
    require<DataError>(!valid, "folder ", folder, " holds a checkpoint of step ", found.step, " (", found.path.string(),
                       "), later than step ", step, " where this run begins: resume from it or use another folder");
  }
  return lock;
}

std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, bool best) {
  NamedTensors tensors = checkpoint.model;
  for (const auto& [name, tensor] : checkpoint.optimizer) tensors.push_back({concat(kOptimizer, name), tensor});
  Metadata metadata = {{"format", "pt"},
                       {"arch", checkpoint.arch},
                       {"epoch", std::to_string(checkpoint.position.epoch)},
                       {kEpochStep, std::to_string(checkpoint.position.step)},
                       {"step", std::to_string(checkpoint.step)},
                       {"best_acc1", exact_text(checkpoint.best_acc1)}};
  if (checkpoint.position.batch > 0) metadata[kEpochBatch] = std::to_string(checkpoint.position.batch);
  if (!checkpoint.series.empty()) metadata[kSeries] = checkpoint.series;
  for (const auto& [key, value] : checkpoint.settings) metadata[concat(kSetting, key)] = value;

  std::string digits = std::to_string(checkpoint.step);
  digits.insert(0, 8 - std::min<std::size_t>(digits.size(), 8), '0');
  const std::string path = (fs::path(folder) / concat(kStem, digits, kEnding)).string();
  make_folder(folder);
  save_tensors(path, tensors, metadata);
  if (best) save_tensors((fs::path(folder) / kBest).string(), tensors, metadata);

  prune(folder, checkpoint.step, checkpoint.series);
  return path;
}

bool holds_checkpoint(const std::string& folder) { return is_folder(folder) && !list_checkpoints(folder).empty(); }

namespace {

/// `check` also gets the path of the file.
template <class Check>
LoadedCheckpoint load_any(const std::string& file_or_folder, Check&& check) {
  const auto read = [&](const std::string& path) {
    return read_checkpoint(
        path, [&](std::span<const TensorInfo> tensors, const Metadata& metadata) { check(path, tensors, metadata); });
  };
  std::error_code error;
  const fs::file_status status = fs::status(file_or_folder, error);
  require<DataError>(fs::exists(status), "no checkpoint at ", file_or_folder, ": ",
                     status.type() != fs::file_type::not_found ? error.message() : "no such file or folder");
  if (!fs::is_directory(status)) return {read(file_or_folder), file_or_folder, {}};

  const std::vector<CheckpointFile> all = list_checkpoints(file_or_folder);
  require<DataError>(!all.empty(), "folder ", file_or_folder, " holds no checkpoint, expected ", kStem, "STEP",
                     kEnding);
  LoadedCheckpoint loaded;
  for (const CheckpointFile& found : all) {
    try {
      loaded.path = found.path.string();
      loaded.checkpoint = read(loaded.path);
      return loaded;
    } catch (const UnreadableFile&) {
      throw;  // another rank, or another attempt, may read it and begin at its step
    } catch (const DataError& damage) {
      loaded.warnings.push_back(concat("passed over a checkpoint: ", damage.what()));
    }
  }
  std::string reasons;
  for (const std::string& warning : loaded.warnings) reasons += "; " + warning;
  throw DataError(concat("folder ", file_or_folder, " holds no valid checkpoint", reasons));
}

template <class Check>
LoadedCheckpoint load(const std::string& file_or_folder, Check&& check) {
  LoadedCheckpoint loaded = load_any(file_or_folder, std::forward<Check>(check));
  if (std::string text = not_finite(loaded); !text.empty()) loaded.warnings.push_back(std::move(text));
  return loaded;
}

}  // namespace

LoadedCheckpoint load_checkpoint(const std::string& file_or_folder) {
  return load(file_or_folder, [](const std::string&, std::span<const TensorInfo>, const Metadata&) {});
}

LoadedCheckpoint load_checkpoint(const std::string& file_or_folder, const std::string& arch,
                                 const NamedTensors& model) {
  return load(file_or_folder,
              [&](const std::string& path, std::span<const TensorInfo> tensors, const Metadata& metadata) {
                if (const auto own = metadata.find("arch"); own != metadata.end()) check_arch(path, own->second, arch);
                check_tensors(path, tensors, model);
              });
}

void restore(const LoadedCheckpoint& loaded, const std::string& arch, const NamedTensors& model) {
  check_arch(loaded.path, loaded.checkpoint.arch, arch);
  copy_by_name(loaded.checkpoint.model, model, loaded.path);
}

}  // namespace duet
