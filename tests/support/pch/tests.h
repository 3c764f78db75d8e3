// Precompiled for the test programs, with what most of them include. Each source still includes what it uses, so that a
// build with -Db_pch=false compiles.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "duet.h"
#include "tests/support/catch2.h"
