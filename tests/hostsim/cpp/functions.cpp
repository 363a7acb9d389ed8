// functions            lists the checks
// functions NAME       compares one group of API functions with plain C++: exit 0 when all agree
#include "functions.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const auto& check : Checks()) std::puts(check.first.c_str());
    return 0;
  }
  Checks().at(argv[1])();
  return g_failures == 0 ? 0 : 1;
}
