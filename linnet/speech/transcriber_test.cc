#include <gtest/gtest.h>
TEST(Todo, Todo) {}
