# Injected into llama.cpp's own CMake project. llama-cpp-python forces LLAMA_BUILD_COMMON on in the cache; a normal
# variable of the same name wins over it. The common library (argument parsing, downloads, chat parsers of llama.cpp's
# command line tools) is half of the compile time, and nothing here uses it.
set(LLAMA_BUILD_COMMON OFF)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-include${CMAKE_CURRENT_LIST_DIR}/llama_amx.h>")
