# millrace_module(NAME
#   HEADERS ...        headers, relative to the folder; each must compile on its own
#   SOURCES ...        sources; without any the module is header-only
#   TESTS ...          GoogleTest sources, linked into one binary NAME_test
#   TEST_DEPS ...      what only the tests need
#   PUBLIC ...         modules and libraries whose types appear in our headers
#   PRIVATE ...        modules and libraries used only in our sources)
#
# The PUBLIC and PRIVATE lists are the include directions of the architecture, in code.
include(GoogleTest)

set(MILLRACE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Werror)

function(millrace_module name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;TESTS;TEST_DEPS;PUBLIC;PRIVATE" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "millrace_module(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
    target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS})
    target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
    target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
    set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name} INTERFACE ${ARG_PUBLIC} ${ARG_PRIVATE})
    target_sources(${name} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
    set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
  if(ARG_TESTS)
    millrace_test(${name}_test SOURCES ${ARG_TESTS} DEPS ${name} ${ARG_TEST_DEPS})
  endif()
endfunction()

# millrace_test(NAME SOURCES ... DEPS ...): one GoogleTest binary, its tests registered one by one.
# Discovery happens when CTest runs, so that building does not execute what it built.
function(millrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # What a test calls is compiled as it ships; its own text needs no more, and half of a build is tests.
  target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS} -O1)
  target_compile_definitions(${name} PRIVATE
    MILLRACE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MILLRACE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/test")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# millrace_program(NAME SOURCES ... DEPS ...): a program in build/<preset>/bin, installed.
function(millrace_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endfunction()
