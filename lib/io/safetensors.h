// Named tensors in files of the safetensors format (github.com/huggingface/safetensors, README "Format").
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/tensor.h"

namespace duet {

/// The `__metadata__` of a file.
using Metadata = std::map<std::string, std::string>;

struct TensorFile {
  NamedTensors tensors;  // on cpu:0, in the order of the file; each in memory of its own
  Metadata metadata;     // without the checksum
};

/// Whether a file without a checksum is read. Files of other programs have none; with it, no changed name, shape, value
/// or metadata is accepted, while another program may write the same content in another order.
enum class Checksum { required, if_present };

/// Writes the tensors (every dtype; plain layout; any device) atomically, with a SHA-256 of the content in the metadata
/// under kChecksumKey. Throws DataError for double or reserved names and when the file cannot be written.
void save_tensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

/// A tensor as a file's header describes it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};
/// Throws what save_tensors() would for the header of such a file: names that are given twice, reserved or not UTF-8,
/// and a header of more than 100 MB.
void require_storable(const std::string& path, std::vector<TensorInfo> tensors, const Metadata& metadata = {});
/// Called with what a valid header says, before any tensor is read; what it throws ends the reading.
using HeaderCheck = std::function<void(std::span<const TensorInfo>, const Metadata&)>;

/// Reads a file. Every rejection is a DataError that names file, field and value. A file of a known other
/// format is named as such, with a command that converts it. Beyond the format's own rules a
/// header is at most 4 levels deep, and a tensor has at most Shape::kMaxRank dimensions.
TensorFile load_tensors(const std::string& path, Checksum checksum = Checksum::if_present,
                        const HeaderCheck& check = {});

inline constexpr const char* kChecksumKey = "duet.sha256";

}  // namespace duet
