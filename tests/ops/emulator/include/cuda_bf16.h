#include "emulator.hpp"
