# Read by CMake inside llama.cpp's project. The helpers behind llama.cpp's own programs are not part
# of the library that the Python binding loads, and they are most of the compile time.
set(LLAMA_BUILD_COMMON OFF)
