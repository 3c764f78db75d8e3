// The images that the program trains on, found as the options say.
#pragma once

#include <memory>
#include <string>

#include "cli/options/options.h"
#include "lib/data/dataset.h"

namespace duet::cli {

struct Images {
  std::shared_ptr<const data::Dataset> train, test;
  std::string name;         // for results.json: "MNIST"
  std::string description;  // one line for people
};

/// Throws DataError when --data or $DUET_DATA names no complete set.
void require_data(const Training& options);

/// Their batches are made on `device`. Throws as require_data(), and DataError for damaged files.
Images find_images(const Training& options, Device device = {});

}  // namespace duet::cli
