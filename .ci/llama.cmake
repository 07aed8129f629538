# Read by CMake inside llama.cpp's project. The helpers behind llama.cpp's own programs are not part
# of the library that the Python binding loads, and they are most of the compile time.
set(LLAMA_BUILD_COMMON OFF)
# Without this macro ggml leaves its AMX kernels out. They configure the processor's tiles once in a
# thread and count on nobody else touching them: where a virtual machine loses that state, or another
# library in the process releases it, the process dies of an illegal instruction. Only quantised
# weights use these kernels, and runs sample from 16-bit copies.
if(NOT MSVC)
    add_compile_options(-U__AMX_INT8__)
endif()
