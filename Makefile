# tq: build, install and installcheck through PGXS.
#
#   make [PG_CONFIG=...] [CXX=clang++] [with_llvm=no] [TQ_LAUNCHER=ccache] [TQ_TEST=1]
#   make install
#   make installcheck        against a running server that preloads tq; scripts/test brings its own
#
# TQ_TEST=1 compiles the wait points that the tests use. Build each variant in a separate directory: cd build/x && make
# -f ../../Makefile TQ_TEST=1

TQ_SRCDIR := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))

EXTENSION  = tq
MODULE_big = tq
PGFILEDESC = "tq - task queue"
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(TQ_SRCDIR)/tq.control)

TQ_SOURCES := $(sort $(patsubst $(TQ_SRCDIR)/%,%,$(wildcard $(TQ_SRCDIR)/src/*.cpp $(TQ_SRCDIR)/src/*/*.cpp)))
OBJS       = $(TQ_SOURCES:.cpp=.o)

# The install script is concatenated from one numbered file per topic, because CREATE EXTENSION needs one file. Scripts
# of releases stay unchanged.
TQ_INSTALL_SQL := $(sort $(wildcard $(TQ_SRCDIR)/sql/install/*.sql))
TQ_UPDATE_SQL  := $(wildcard $(TQ_SRCDIR)/sql/update/$(EXTENSION)--*--$(EXTVERSION).sql)
DATA_built = $(EXTENSION)--$(EXTVERSION).sql $(notdir $(TQ_UPDATE_SQL))
DATA       = $(patsubst $(TQ_SRCDIR)/%,%,$(filter-out $(TQ_UPDATE_SQL), \
	$(wildcard $(TQ_SRCDIR)/sql/released/*.sql $(TQ_SRCDIR)/sql/update/*.sql)))

# The install script and the newest update script end with the same comments and texts of tq_help.
TQ_COMMENTS    := $(TQ_SRCDIR)/sql/comments/internal.sql $(TQ_SRCDIR)/sql/comments/reference.awk
TQ_REFERENCE   := $(sort $(wildcard $(TQ_SRCDIR)/docs/reference*.md))

# Every script in sql/ and every spec is a test; check_tests_paired checks that each has its expected output.
REGRESS        = $(sort $(basename $(notdir $(wildcard $(TQ_SRCDIR)/sql/*.sql))))
REGRESS_OPTS   = --inputdir=$(TQ_SRCDIR) --load-extension=tq
ISOLATION      = $(sort $(basename $(notdir $(wildcard $(TQ_SRCDIR)/test/isolation/specs/*.spec))))
ISOLATION_OPTS = --inputdir=$(TQ_SRCDIR)/test/isolation --load-extension=tq
# The tests create queues by use, which raises a NOTICE.
installcheck: export PGOPTIONS = -c client_min_messages=warning
EXTRA_CLEAN    = prelude.* tq-comments.sql $(TQ_SOURCES:.cpp=.d) $(TQ_SOURCES:.cpp=.bc.d) .tq-flags

PG_CONFIG ?= pg_config

# -isystem silences warnings in the server's headers. PostgreSQL before 16 neither hides symbols nor marks its own
# exports, so the attribute is set here, and TQ_FUNCTION declares each exported function with it.
PG_CPPFLAGS = -I$(TQ_SRCDIR)/src -isystem $(shell $(PG_CONFIG) --includedir-server) \
	-DTQ_VERSION='"$(EXTVERSION)"' -DPGDLLEXPORT='__attribute__((visibility("default")))'
ifdef TQ_TEST
PG_CPPFLAGS += -DTQ_TEST
endif

# Only warnings that g++ and clang++ both support: the bitcode step uses clang whatever CXX is. The unknown-option
# switch serves clang++ with the g++ options of the server's configuration. The last two are for server macros:
# PG_MODULE_MAGIC of 18, HOLD_INTERRUPTS.
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Wshadow -Wno-register -Wno-unused-parameter -Wno-unknown-warning-option \
	-Wno-missing-designated-field-initializers -Wno-deprecated-volatile \
	-fno-rtti -fvisibility=hidden -fvisibility-inlines-hidden $(TQ_CXXFLAGS)

# PGXS links with the C compiler.
SHLIB_LINK += -lstdc++

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

TQ_CLANG := $(CLANG)
ifdef TQ_LAUNCHER
override CXX := $(TQ_LAUNCHER) $(CXX)
override CLANG := $(TQ_LAUNCHER) $(CLANG)
endif

ifeq ($(PORTNAME),linux)
SHLIB_LINK += -Wl,--version-script=$(TQ_SRCDIR)/src/exports.map
tq.so: $(TQ_SRCDIR)/src/exports.map
endif

# Search other directories for sources only. With VPATH, make would also use objects that an in-tree build left beside
# the sources, compiled with other flags.
override VPATH :=
vpath %.cpp $(TQ_SRCDIR)
vpath %.control $(TQ_SRCDIR)
vpath sql/released/%.sql $(TQ_SRCDIR)
vpath sql/update/%.sql $(TQ_SRCDIR)

# PGXS omits PG_CXXFLAGS for bitcode, and tracks headers only if the server was configured to.
COMPILE.cxx.bc += $(PG_CXXFLAGS) -MMD -MP -MF $(@:.bc=.bc.d)
COMPILE.cc += -MMD -MP -MF $(@:.o=.d)
-include $(wildcard $(TQ_SOURCES:.cpp=.d) $(TQ_SOURCES:.cpp=.bc.d))

# Files outside src/core begin with pg/prelude.hpp, whose headers take most of a compilation: it is compiled once. ccache
# identifies the result by its sum, since it differs each time.
TQ_OUTSIDE := $(filter-out src/core/%,$(OBJS))
$(TQ_OUTSIDE): private CPPFLAGS += -include prelude.hpp -Winvalid-pch $(if $(findstring clang,$(CXX)),,-fpch-preprocess)
$(TQ_OUTSIDE:.o=.bc): private CPPFLAGS += -include-pch prelude.bc.pch
$(TQ_OUTSIDE): prelude.hpp.gch
$(TQ_OUTSIDE:.o=.bc): prelude.bc.pch

# a file that includes it, since #pragma once does not hold for a main file
prelude.hpp: .tq-flags
	printf '#include "pg/prelude.hpp"\n' > $@
prelude.hpp.gch: prelude.hpp
	$(if $(TQ_LAUNCHER),$(CXX) $(CXXFLAGS) $(CPPFLAGS) -E -P $< | sha256sum > $@.sum)
	$(CXX) $(CXXFLAGS) $(CPPFLAGS) -MMD -MP -MF prelude.d -x c++-header -o $@ $<
# clang's names the folder where it was made: it is not shared
prelude.bc.pch: prelude.hpp
	$(if $(TQ_LAUNCHER),$(TQ_CLANG) $(BITCODE_CXXFLAGS) $(CPPFLAGS) $(PG_CXXFLAGS) -E -P $< | sha256sum > $@.sum)
	$(TQ_CLANG) -Wno-ignored-attributes $(BITCODE_CXXFLAGS) $(CPPFLAGS) $(PG_CXXFLAGS) -MMD -MP -MF prelude.bc.d -x c++-header -o $@ $<
-include prelude.d prelude.bc.d

# Objects depend on their compiler flags.
TQ_FLAGS := $(subst ','\'',$(CXX) $(CXXFLAGS) $(CPPFLAGS))
$(shell mkdir -p ./ $(sort $(dir $(OBJS))); \
	printf '%s\n' '$(TQ_FLAGS)' | cmp -s - .tq-flags || printf '%s\n' '$(TQ_FLAGS)' > .tq-flags)
$(OBJS) $(OBJS:.o=.bc): .tq-flags

tq-comments.sql: $(TQ_COMMENTS) $(TQ_REFERENCE)
	{ cat $(filter %.sql,$(TQ_COMMENTS)) && awk -f $(filter %.awk,$(TQ_COMMENTS)) $(TQ_REFERENCE); } > $@.tmp
	mv $@.tmp $@

$(EXTENSION)--$(EXTVERSION).sql: $(TQ_INSTALL_SQL) tq-comments.sql $(TQ_SRCDIR)/tq.control
	{ printf '%s\n' '-- complain if the script is sourced in psql rather than run by CREATE EXTENSION' \
		'\echo Use "CREATE EXTENSION tq" to load this file. \quit'; \
		cat $(TQ_INSTALL_SQL) tq-comments.sql; } > $@.tmp
	mv $@.tmp $@

$(notdir $(TQ_UPDATE_SQL)): %: $(TQ_SRCDIR)/sql/update/% tq-comments.sql $(TQ_SRCDIR)/tq.control
	cat $(TQ_SRCDIR)/sql/update/$@ tq-comments.sql > $@.tmp
	mv $@.tmp $@
