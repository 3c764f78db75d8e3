#include "lib/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/io/atomic_file.h"
#include "lib/io/file_format.h"

namespace duet {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // of the format's own reader
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 40;
constexpr std::size_t kMaxDepth = 4, kMaxItems = 100'000;
constexpr const char* kMetadata = "__metadata__";
constexpr std::size_t kHexDigits = 64;

struct TypeName {
  DType dtype;
  const char* name;
};
constexpr std::array<TypeName, 7> kTypes = {{{DType::f32, "F32"},
                                             {DType::f64, "F64"},
                                             {DType::i64, "I64"},
                                             {DType::i32, "I32"},
                                             {DType::u8, "U8"},
                                             {DType::f16, "F16"},
                                             {DType::bf16, "BF16"}}};

const char* format_name(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return t.dtype == dtype; })->name;
}

struct Entry : TensorInfo {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Hands on each entry of a header when it is read: the whole header in the library's form takes 20 times its bytes.
/// Throws DataError for JSON that is not valid, equal keys, of which the library keeps the last, and deep or long
/// values.
struct EntryReader {
  const std::string& file;
  std::function<void(const std::string& name, const json& value)> take;
  std::set<std::string> names{};
  std::vector<json*> open{};  // values that have not ended: the header, which has no place, then from the entry's on
  json entry{};
  std::string name{}, field{};

  /// Returns its place.
  json* put(json value) {
    if (open.size() == 1) return &(entry = std::move(value));
    json& around = *open.back();
    require<DataError>(around.size() < kMaxItems, file, ": \"", name, "\" has more than ", kMaxItems, " values");
    if (around.is_object()) return &(around[field] = std::move(value));
    around.push_back(std::move(value));
    return &around.back();
  }
  bool pass() {
    if (open.size() == 1) take(name, entry);
    return true;
  }
  bool scalar(json value) { return put(std::move(value)), pass(); }
  bool start(json value) {
    require<DataError>(open.size() < kMaxDepth, file, ": header is nested deeper than ", kMaxDepth, " levels");
    open.push_back(open.empty() ? nullptr : put(std::move(value)));
    return true;
  }
  bool end() { return open.pop_back(), pass(); }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(json::number_integer_t value) { return scalar(value); }
  bool number_unsigned(json::number_unsigned_t value) { return scalar(value); }
  bool number_float(json::number_float_t value, const std::string&) { return scalar(value); }
  bool string(std::string& value) { return scalar(std::move(value)); }
  bool binary(json::binary_t&) { return true; }
  bool start_array(std::size_t) { return start(json::array()); }
  bool end_array() { return end(); }
  bool start_object(std::size_t) { return start(json::object()); }
  bool end_object() { return end(); }
  bool key(std::string& key) {
    const bool of_entry = open.size() == 1;
    require<DataError>(of_entry ? names.insert(key).second : !open.back()->contains(key), file, ": header has the key ",
                       json(key).dump(), " twice");
    (of_entry ? name : field) = key;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) const {
    throw DataError(concat(file, ": header is not valid JSON: ", error.what()));
  }
};

/// A header's content, checked. `file` only words the messages.
class Header {
 public:
  Header(const std::string& file, std::string_view text, std::uint64_t buffer_bytes) : file_(file), text_(text) {
    require<DataError>(!text_.empty() && text_.front() == '{', file_, ": header does not begin with '{'");
    const std::size_t last = text_.find_last_not_of(' ');
    require<DataError>(text_[last] == '}', file_, ": header ends with byte ",
                       static_cast<int>(static_cast<unsigned char>(text_[last])), ", expected '}' and spaces");
    entries.reserve(text_.size() / 52);  // bytes of the shortest entry
    EntryReader reader{file_, [this](const std::string& name, const json& value) {
                         name == kMetadata ? read_metadata(value) : entries.push_back(read_entry(name, value));
                       }};
    json::sax_parse(text_.begin(), text_.end(), &reader);
    check_offsets(buffer_bytes);
  }

  std::vector<Entry> entries;
  Metadata metadata;

 private:
  void read_metadata(const json& value) {
    require<DataError>(value.is_object(), file_, ": __metadata__ is a JSON ", value.type_name(),
                       ", expected an object");
    for (const auto& [key, text] : value.items()) {
      require<DataError>(text.is_string(), file_, ": __metadata__ \"", key, "\" is a JSON ", text.type_name(),
                         ", expected a string");
      metadata[key] = text.get<std::string>();
    }
  }

  Entry read_entry(const std::string& name, const json& value) {
    const std::string where = concat(file_, ": tensor \"", name, "\"");
    require<DataError>(value.is_object(), where, " is a JSON ", value.type_name(), ", expected an object");
    for (const auto& [key, unused] : value.items())
      require<DataError>(key == "dtype" || key == "shape" || key == "data_offsets", where, " has an unknown field \"",
                         key, "\"");
    for (const char* key : {"dtype", "shape", "data_offsets"})
      require<DataError>(value.contains(key), where, " has no field \"", key, "\"");

    const json& dtype = value["dtype"];
    const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return dtype == t.name; });
    require<DataError>(type != kTypes.end(), where, " has dtype ", dtype.dump(),
                       ", expected F32, F64, I64, I32, U8, F16 or BF16");

    const std::vector<std::uint64_t> sizes = read_numbers(where + " shape", value["shape"]);
    require<DataError>(sizes.size() <= Shape::kMaxRank, where, " has ", sizes.size(), " dimensions, expected at most ",
                       Shape::kMaxRank);
    Shape shape;
    for (const std::uint64_t size : sizes) shape.append(static_cast<std::int64_t>(size));

    const std::vector<std::uint64_t> offsets = read_numbers(where + " data_offsets", value["data_offsets"]);
    require<DataError>(offsets.size() == 2, where, " has ", offsets.size(), " data_offsets, expected 2");
    require<DataError>(offsets[0] <= offsets[1], where, " has data_offsets [", offsets[0], ", ", offsets[1],
                       "]: the end lies before the beginning");
    const std::uint64_t expected = checked_bytes(where, sizes, size_of(type->dtype));
    require<DataError>(offsets[1] - offsets[0] == expected, where, " has ", offsets[1] - offsets[0],
                       " bytes by its data_offsets, expected ", expected, " by shape ", shape, " and dtype ",
                       type->name);
    return {{name, type->dtype, shape}, offsets[0], offsets[1]};
  }

  static std::vector<std::uint64_t> read_numbers(const std::string& where, const json& value) {
    require<DataError>(value.is_array(), where, " is a JSON ", value.type_name(), ", expected an array");
    std::vector<std::uint64_t> numbers;
    for (const json& number : value) {
      require<DataError>(number.is_number_unsigned() && number.get<std::uint64_t>() <= kMaxFile, where,
                         " has the value ", number.dump(), ", expected a whole number from 0 to ", kMaxFile);
      numbers.push_back(number.get<std::uint64_t>());
    }
    return numbers;
  }

  static std::uint64_t checked_bytes(const std::string& where, const std::vector<std::uint64_t>& sizes,
                                     std::uint64_t bytes) {
    for (const std::uint64_t size : sizes) {
      require<DataError>(size == 0 || bytes <= kMaxFile / size, where, " has a shape of more than ", kMaxFile,
                         " bytes");
      bytes *= size;
    }
    return bytes;
  }

  void check_offsets(std::uint64_t buffer_bytes) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t expected = 0;
    for (const Entry& entry : entries) {
      require<DataError>(entry.begin == expected, file_, ": tensor \"", entry.name, "\" begins at byte ", entry.begin,
                         ", expected ", expected, ", where the one before ends");
      expected = entry.end;
    }
    require<DataError>(expected == buffer_bytes, file_, ": tensors take ", expected, " bytes, the file holds ",
                       buffer_bytes);
  }

  const std::string& file_;
  std::string_view text_;
};

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) number |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return number;
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()};
}

struct Content {
  std::string_view name;
  DType dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// The digest of what a file says, in whatever order and spacing: of the header with sorted keys, without spaces,
/// offsets and checksum, then of the tensors by name.
std::string content_digest(const Metadata& metadata, std::vector<Content> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Content& a, const Content& b) { return a.name < b.name; });
  json header;
  header[kMetadata] = metadata;
  header[kMetadata].erase(kChecksumKey);
  for (const Content& tensor : tensors)
    header[std::string(tensor.name)] = {{"dtype", format_name(tensor.dtype)},
                                        {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())}};
  const std::string text = header.dump();
  Sha256 sum;
  sum.update(std::as_bytes(std::span(text)));
  for (const Content& tensor : tensors) sum.update(tensor.bytes);
  return sum.hex();
}

/// The digest that earlier versions stored: of all bytes of the file, in which the digest itself reads as zeros.
std::string file_digest(std::span<const std::byte> bytes, std::size_t digest_at) {
  static constexpr std::string_view kZeros = "0000000000000000000000000000000000000000000000000000000000000000";
  Sha256 sum;
  sum.update(bytes.first(digest_at));
  sum.update(std::as_bytes(std::span(kZeros)));
  sum.update(bytes.subspan(digest_at + kHexDigits));
  return sum.hex();
}

void check_digest(const std::string& file, const std::string& stored, const std::string& found,
                  std::span<const std::byte> bytes, std::size_t header_end) {
  require<DataError>(stored.size() == kHexDigits, file, ": ", kChecksumKey, " is not a SHA-256: \"", stored, "\"");
  if (found == stored) return;
  const std::string_view front(reinterpret_cast<const char*>(bytes.data()), header_end);
  const std::size_t at = front.find(concat('"', stored, '"'));
  require<DataError>(at != std::string_view::npos && file_digest(bytes, at + 1) == stored, file,
                     " is damaged: the SHA-256 of its content is ", found, ", expected ", stored);
}

}  // namespace

namespace {

// The order of the format's own writer: largest alignment first, then by name.
bool is_before(const TensorInfo& a, const TensorInfo& b) {
  const std::size_t of_a = size_of(a.dtype), of_b = size_of(b.dtype);
  return of_a != of_b ? of_a > of_b : a.name < b.name;
}

/// The header of a file with these tensors, in this order. `digest` gives the checksum.
template <class Digest>
std::string header_text(const std::string& path, std::span<const TensorInfo> sorted, const Metadata& metadata,
                        const Digest& digest) {
  nlohmann::ordered_json header;
  header[kMetadata] = metadata;
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  entries.reserve(sorted.size() + 1);
  std::set<std::string_view> names = {kMetadata};
  std::uint64_t offset = 0;
  for (const TensorInfo& one : sorted) {
    require<DataError>(names.insert(one.name).second, path, ": the name \"", one.name, "\" is reserved or given twice");
    const std::uint64_t end = offset + static_cast<std::uint64_t>(one.shape.count()) * size_of(one.dtype);
    // Not by operator[], which looks for the name.
    entries.push_back({one.name,
                       {{"dtype", format_name(one.dtype)},
                        {"shape", std::vector<std::int64_t>(one.shape.begin(), one.shape.end())},
                        {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text;
  try {
    header[kMetadata][kChecksumKey] = digest();
    text = header.dump();
  } catch (const json::exception& error) {
    throw DataError(concat(path, ": a name or value is not UTF-8: ", error.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  require<DataError>(text.size() <= kMaxHeader, path, ": the header has ", text.size(), " bytes, expected at most ",
                     kMaxHeader, ": too many tensors, or too long names");
  return text;
}

}  // namespace

void require_storable(const std::string& path, std::vector<TensorInfo> tensors, const Metadata& metadata) {
  std::ranges::sort(tensors, is_before);
  header_text(path, tensors, metadata, [] { return std::string(kHexDigits, '0'); });
}

void save_tensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  NamedTensors sorted;
  for (const auto& [name, tensor] : tensors) {
    require<DataError>(tensor.defined() && tensor.layout() == Layout::plain, path, ": tensor \"", name,
                       "\" is undefined or not in plain layout");
    sorted.push_back({name, tensor.to(Device{})});
  }
  const auto info = [](const NamedTensor& one) { return TensorInfo{one.name, one.tensor.dtype(), one.tensor.shape()}; };
  std::ranges::sort(sorted, is_before, info);
  std::vector<TensorInfo> infos;
  std::vector<Content> contents;
  for (const NamedTensor& one : sorted) {
    infos.push_back(info(one));
    contents.push_back({one.name, one.tensor.dtype(), one.tensor.shape(), bytes_of(one.tensor)});
  }
  const std::string text =
      header_text(path, infos, metadata, [&] { return content_digest(metadata, std::move(contents)); });

  std::string front;
  for (std::size_t i = 0; i < 8; ++i) front += static_cast<char>(text.size() >> (8 * i) & 0xff);
  front += text;
  std::vector<std::span<const std::byte>> file = {std::as_bytes(std::span(front))};
  for (const NamedTensor& one : sorted) file.push_back(bytes_of(one.tensor));
  write_atomically(path, file);
}

TensorFile load_tensors(const std::string& path, Checksum checksum, const HeaderCheck& check) {
  FileReader reader(path);
  const std::string other = describe_file(path, FileContent::tensors);
  require<DataError>(other.empty(), path, ": expected a safetensors file, but it is ", other);
  require<DataError>(reader.size() >= 8, path, " holds ", reader.size(), " bytes, expected 8 or more");
  require<DataError>(reader.size() <= kMaxFile, path, " holds ", reader.size(), " bytes, expected at most ", kMaxFile);
  std::vector<std::byte> bytes(8);
  reader.read(bytes);
  const std::uint64_t header_bytes = little_endian(bytes);
  require<DataError>(header_bytes <= kMaxHeader, path, ": header length is ", header_bytes, ", expected at most ",
                     kMaxHeader);
  require<DataError>(header_bytes <= reader.size() - 8, path, ": header length is ", header_bytes, ", but only ",
                     reader.size() - 8, " bytes follow");
  const std::size_t header_end = 8 + static_cast<std::size_t>(header_bytes);
  bytes.resize(header_end);
  reader.read(std::span(bytes).subspan(8));
  Header header(path, {reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(header_bytes)},
                reader.size() - header_end);  // the file's size is what the header says
  if (check) check(std::vector<TensorInfo>(header.entries.begin(), header.entries.end()), header.metadata);
  bytes.resize(static_cast<std::size_t>(reader.size()));
  reader.read(std::span(bytes).subspan(header_end));

  TensorFile file;
  std::vector<Content> contents;
  for (const Entry& entry : header.entries) {
    Tensor tensor = empty(entry.shape, entry.dtype);
    if (tensor.bytes() > 0) std::memcpy(tensor.raw(), bytes.data() + header_end + entry.begin, tensor.bytes());
    contents.push_back({entry.name, entry.dtype, entry.shape, bytes_of(tensor)});
    file.tensors.push_back({entry.name, std::move(tensor)});
  }
  file.metadata = std::move(header.metadata);
  if (const auto stored = file.metadata.find(kChecksumKey); stored != file.metadata.end()) {
    check_digest(path, stored->second, content_digest(file.metadata, std::move(contents)), bytes, header_end);
    file.metadata.erase(stored);
  } else {
    require<DataError>(checksum == Checksum::if_present, path, ": __metadata__ has no \"", kChecksumKey, "\"");
  }
  return file;
}

}  // namespace duet
