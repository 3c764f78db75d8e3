// The images that a training works on, found as the options say.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/options/options.h"
#include "lib/data/dataset.h"
#include "lib/device.h"

namespace duet::cli {

struct Images {
  std::shared_ptr<const data::Dataset> train, test;
  std::int64_t classes = 10;
  std::string name;         // for results.json: "MNIST"
  std::string description;  // one line for people
};

/// The hash that differs between sets of one size, as text: "1f00ab3725c0ffee".
std::string hash_text(const data::Dataset& set);

/// Throws DataError when --data or $DUET_DATA names no complete set, UsageError for one that the network cannot take.
void require_data(const Training& options);

/// Their batches are made on `device` where they are MNIST's, else on the host. Throws as require_data(), and DataError
/// for damaged files.
Images find_images(const Training& options, Device device = {});

/// The number of their classes, found without reading them. Throws as require_data().
std::int64_t classes_of_data(const Training& options);

}  // namespace duet::cli
