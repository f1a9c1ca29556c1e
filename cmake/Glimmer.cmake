# gm_folder(NAME [USES folder...] [LIBS target...] [SUBDIRS] [PROGRAM exe])
#
# One folder under src/ becomes one static library gm_NAME made of its *.c
# files. Beside a file x.c:
#   x_test.c   a cmocka program, run by CTest, linked with this folder alone
#   x_bench.c  a benchmark program, built as bench/x_bench
#   x_fuzz.c   a libFuzzer target (GM_FUZZ)
# SUBDIRS: the folder holds one level of sub-folders (ops/<op>/). PROGRAM: the
# files make an executable instead of a library.

set(GM_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wvla -Wmissing-prototypes
    -Wstrict-prototypes -Wpointer-arith -Wcast-qual -Wwrite-strings -Wno-sign-conversion)
add_library(gm_flags INTERFACE)
target_compile_options(gm_flags INTERFACE ${GM_WARNINGS} -fno-strict-aliasing -ffp-contract=off)
target_compile_definitions(gm_flags INTERFACE _GNU_SOURCE GM_VERSION="${PROJECT_VERSION}")
if(GM_WERROR)
  target_compile_options(gm_flags INTERFACE -Werror)
endif()
if(GM_SANITIZE)
  # Tests that repeat one thing over many shapes take fewer rounds (GM_SHORT_TESTS): a sanitizer needs each path once.
  target_compile_definitions(gm_flags INTERFACE GM_SHORT_TESTS=1)
  target_compile_options(gm_flags INTERFACE -fsanitize=${GM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gm_flags INTERFACE -fsanitize=${GM_SANITIZE})
endif()
add_custom_target(fuzzers) # all fuzz targets
if(GM_FUZZ)
  target_compile_options(gm_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Each folder's headers are seen as "folder/x.h" through a directory that holds
# just that one link: whoever does not use the folder cannot include from it.
function(gm_expose NAME)
  set(dir ${CMAKE_BINARY_DIR}/include-of/${NAME})
  file(MAKE_DIRECTORY ${dir})
  if(NOT EXISTS ${dir}/${NAME})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${NAME} ${dir}/${NAME} SYMBOLIC)
  endif()
  set(GM_EXPOSED ${dir} PARENT_SCOPE)
endfunction()

function(gm_folder NAME)
  cmake_parse_arguments(F "SUBDIRS" "PROGRAM" "USES;LIBS" ${ARGN})
  set(root ${CMAKE_SOURCE_DIR}/src/${NAME})
  if(F_SUBDIRS)
    file(GLOB files CONFIGURE_DEPENDS ${root}/*.c ${root}/*/*.c)
  else()
    file(GLOB files CONFIGURE_DEPENDS ${root}/*.c)
  endif()
  set(tests ${files})
  list(FILTER tests INCLUDE REGEX "_test\\.c$")
  set(benches ${files})
  list(FILTER benches INCLUDE REGEX "_bench\\.c$")
  set(fuzzers ${files})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.c$")
  list(FILTER files EXCLUDE REGEX "_(test|bench|fuzz)\\.c$")

  set(uses)
  foreach(u ${F_USES})
    list(APPEND uses gm_${u})
  endforeach()
  gm_expose(${NAME})

  if(F_PROGRAM)
    add_executable(${F_PROGRAM} ${files})
    target_link_libraries(${F_PROGRAM} PRIVATE gm_flags ${uses} ${F_LIBS})
    target_include_directories(${F_PROGRAM} PRIVATE ${GM_EXPOSED})
    set_target_properties(${F_PROGRAM} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    install(TARGETS ${F_PROGRAM} RUNTIME DESTINATION bin)
    return()
  endif()

  # A folder without files yet is left out: nothing can link it.
  if(NOT files)
    add_library(gm_${NAME} INTERFACE)
    target_include_directories(gm_${NAME} INTERFACE ${GM_EXPOSED})
    target_link_libraries(gm_${NAME} INTERFACE gm_flags ${uses} ${F_LIBS})
    return()
  endif()
  add_library(gm_${NAME} STATIC ${files})
  target_link_libraries(gm_${NAME} PUBLIC gm_flags ${uses} ${F_LIBS})
  target_include_directories(gm_${NAME} PUBLIC ${GM_EXPOSED})
  # Instrumented unrolled loops take minutes to optimise: sanitizer and fuzzing builds do without.
  set(opt -O3)
  if(GM_SANITIZE OR GM_FUZZ)
    set(opt -O1)
  endif()
  foreach(f ${files})
    # The suffix of a variant's file tells the build its instruction set.
    if(f MATCHES "_avx2\\.c$")
      set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;${opt}")
    elseif(f MATCHES "_avx512\\.c$")
      set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mavx512vnni;-mfma;-mf16c;${opt}")
    endif()
  endforeach()

  foreach(t ${tests})
    get_filename_component(n ${t} NAME_WE)
    add_executable(${n} ${t})
    target_link_libraries(${n} PRIVATE gm_${NAME} PkgConfig::CMOCKA)
    set_target_properties(${n} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/unit)
    target_compile_definitions(${n} PRIVATE GM_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures"
      GM_MODELS="${CMAKE_SOURCE_DIR}/models")
    add_test(NAME ${NAME}.${n} COMMAND ${n})
    set_tests_properties(${NAME}.${n} PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
    # `make tsan` runs those in which threads meet.
    if(NAME MATCHES "^(device|engine|server)$")
      set_tests_properties(${NAME}.${n} PROPERTIES LABELS threads)
    endif()
  endforeach()
  foreach(b ${benches})
    get_filename_component(n ${b} NAME_WE)
    add_executable(${n} ${b})
    target_link_libraries(${n} PRIVATE gm_${NAME})
    set_target_properties(${n} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/benchmarks)
  endforeach()
  if(GM_FUZZ)
    foreach(z ${fuzzers})
      get_filename_component(n ${z} NAME_WE)
      add_executable(${n} ${z})
      add_dependencies(fuzzers ${n})
      target_link_libraries(${n} PRIVATE gm_${NAME})
      target_link_options(${n} PRIVATE -fsanitize=fuzzer)
      target_compile_definitions(${n} PRIVATE GM_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures"
        GM_MODELS="${CMAKE_SOURCE_DIR}/models")
      set_target_properties(${n} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    endforeach()
  endif()
endfunction()
