# tq: build, install and installcheck through PGXS.
#
#   make [PG_CONFIG=...] [CXX=clang++] [with_llvm=no] [TQ_TEST=1]
#   make install
#   make installcheck        against a running server that preloads tq; scripts/test brings its own
#
# TQ_TEST=1 compiles the wait points in that the tests stop at.  Variants are kept apart by building in
# directories of their own: cd build/x && make -f ../../Makefile TQ_TEST=1

TQ_SRCDIR := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))

EXTENSION  = tq
MODULE_big = tq
PGFILEDESC = "tq - task queue"
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(TQ_SRCDIR)/tq.control)

TQ_SOURCES := $(sort $(patsubst $(TQ_SRCDIR)/%,%,$(wildcard $(TQ_SRCDIR)/src/*.cpp $(TQ_SRCDIR)/src/*/*.cpp)))
OBJS       = $(TQ_SOURCES:.cpp=.o)

# The install script is one file per topic, numbered; CREATE EXTENSION wants one file. Those of releases are kept as they were.
TQ_INSTALL_SQL := $(sort $(wildcard $(TQ_SRCDIR)/sql/install/*.sql))
DATA_built = $(EXTENSION)--$(EXTVERSION).sql
DATA       = $(patsubst $(TQ_SRCDIR)/%,%,$(wildcard $(TQ_SRCDIR)/sql/released/*.sql $(TQ_SRCDIR)/sql/update/*.sql))

# Every script in sql/ and every spec is a test; check_tests_paired sees to it that each has its expected output.
REGRESS        = $(sort $(basename $(notdir $(wildcard $(TQ_SRCDIR)/sql/*.sql))))
REGRESS_OPTS   = --inputdir=$(TQ_SRCDIR) --load-extension=tq
ISOLATION      = $(sort $(basename $(notdir $(wildcard $(TQ_SRCDIR)/test/isolation/specs/*.spec))))
ISOLATION_OPTS = --inputdir=$(TQ_SRCDIR)/test/isolation --load-extension=tq
EXTRA_CLEAN    = $(TQ_SOURCES:.cpp=.d) $(TQ_SOURCES:.cpp=.bc.d) .tq-flags

PG_CONFIG ?= pg_config

# The server's headers are not ours to clean up, hence -isystem.  PostgreSQL before 16 neither hides symbols
# nor marks its own exports, so the attribute is given here and TQ_FUNCTION declares each function with it.
PG_CPPFLAGS = -I$(TQ_SRCDIR)/src -isystem $(shell $(PG_CONFIG) --includedir-server) \
	-DTQ_VERSION='"$(EXTVERSION)"' -DPGDLLEXPORT='__attribute__((visibility("default")))'
ifdef TQ_TEST
PG_CPPFLAGS += -DTQ_TEST
endif

# Only what g++ and clang++ both know: the bitcode step uses clang whatever CXX is.  The unknown-option switch is
# for the other direction, clang++ given the g++ options that the server was configured with.  The last two
# are for macros of the server: PG_MODULE_MAGIC of 18, HOLD_INTERRUPTS.
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Wshadow -Wno-register -Wno-unused-parameter -Wno-unknown-warning-option \
	-Wno-missing-designated-field-initializers -Wno-deprecated-volatile \
	-fno-rtti -fvisibility=hidden -fvisibility-inlines-hidden $(TQ_CXXFLAGS)

# PGXS links with the C compiler.
SHLIB_LINK += -lstdc++

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

ifeq ($(PORTNAME),linux)
SHLIB_LINK += -Wl,--version-script=$(TQ_SRCDIR)/src/exports.map
tq.so: $(TQ_SRCDIR)/src/exports.map
endif

# Search other directories for sources only.  With VPATH, make would also take objects that an in-tree build
# left beside the sources, made with other flags.
override VPATH :=
vpath %.cpp $(TQ_SRCDIR)
vpath %.control $(TQ_SRCDIR)
vpath sql/released/%.sql $(TQ_SRCDIR)
vpath sql/update/%.sql $(TQ_SRCDIR)

# PGXS forgets PG_CXXFLAGS for bitcode, and tracks headers only if the server was configured to.
COMPILE.cxx.bc += $(PG_CXXFLAGS) -MMD -MP -MF $(@:.bc=.bc.d)
COMPILE.cc += -MMD -MP -MF $(@:.o=.d)
-include $(wildcard $(TQ_SOURCES:.cpp=.d) $(TQ_SOURCES:.cpp=.bc.d))

# Objects depend on the flags they were made with.
TQ_FLAGS := $(subst ','\'',$(CXX) $(CXXFLAGS) $(CPPFLAGS))
$(shell mkdir -p ./ $(sort $(dir $(OBJS))); \
	printf '%s\n' '$(TQ_FLAGS)' | cmp -s - .tq-flags || printf '%s\n' '$(TQ_FLAGS)' > .tq-flags)
$(OBJS) $(OBJS:.o=.bc): .tq-flags

$(DATA_built): $(TQ_INSTALL_SQL) $(TQ_SRCDIR)/tq.control
	{ printf '%s\n' '-- complain if the script is sourced in psql rather than run by CREATE EXTENSION' \
		'\echo Use "CREATE EXTENSION tq" to load this file. \quit'; cat $(TQ_INSTALL_SQL); } > $@.tmp
	mv $@.tmp $@
