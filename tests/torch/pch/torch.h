// Precompiled for the tests of LibTorch's wrappers, whose headers take most of a compilation.
#include <torch/torch.h>

#include "duet.h"
#include "tests/support/catch2.h"
