# The front door. CMake does the work (CMakePresets.json has all builds).
#   make            build/glimmer
#   make demo       install what is missing, build, and talk to the shipped model over HTTP
#   make check      install what is missing, build, and run all tests
#   make bench      measure every op against this machine's limits, then tokens/s
#   make install    PREFIX=/usr/local
#   make asan tsan  the tests under AddressSanitizer+UBSan, and those with threads under TSan
#   make fuzz       every fuzz target for FUZZ_SECONDS (60)
BUILD := build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)

.PHONY: all deps configure demo check bench install asan tsan fuzz format clean

all: deps configure
	@cmake --build $(BUILD) --parallel $(JOBS)

deps:
	@tools/install-deps.sh

configure:
	@test -f $(BUILD)/CMakeCache.txt || cmake --preset release >/dev/null

demo: all
	@python3 tools/demo.py $(BUILD)/glimmer models/tiny-glm-5.3-flash

check: all
	@cd $(BUILD) && ctest --output-on-failure --parallel $(JOBS)

bench: all
	@tools/bench.sh $(BUILD)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

asan tsan:
	@tools/install-deps.sh --ci
	@cmake --preset $@ >/dev/null
	@cmake --build build-$@ --parallel $(JOBS)
	@cd build-$@ && ctest --output-on-failure --parallel $(JOBS) $(if $(filter tsan,$@),-L threads)

fuzz:
	@tools/install-deps.sh --ci
	@cmake --preset fuzz >/dev/null
	@cmake --build build-fuzz --target fuzzers --parallel $(JOBS)
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS)

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build build-*
