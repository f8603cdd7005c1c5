# The C parts: the job_submit plugin and the client of the slurmctld hooks.
# SLURM_INCLUDE is the folder that holds slurm/slurm.h. What is built lies in a folder of its own for each
# distribution and Slurm: slurmctld refuses a plugin of another version.

SLURM_INCLUDE ?= /usr/include
SLURM_PLUGIN_DIR ?= /usr/lib/$(shell $(CC) -print-multiarch)/slurm-wlm
PREFIX ?= /usr
SYSCONFDIR ?= /etc

PLUGIN_C := slurm_plugins
PLUGIN_DISTRIBUTION := $(shell . /etc/os-release && echo $${VERSION_CODENAME:-unknown})
PLUGIN_SLURM = $(shell sed -n 's/^.define SLURM_VERSION_NUMBER *//p' $(SLURM_INCLUDE)/slurm/slurm_version.h 2>/dev/null)
PLUGIN_BUILD = build/plugin/$(PLUGIN_DISTRIBUTION)-$(or $(PLUGIN_SLURM),none)
PLUGIN_SO = $(PLUGIN_BUILD)/job_submit_hetsched.so
HOOK_PROGRAM = build/plugin/$(PLUGIN_DISTRIBUTION)/hetsched-hook
HOOK_PB_DIR := build/plugin/$(PLUGIN_DISTRIBUTION)/pb
HOOK_PB := $(HOOK_PB_DIR)/hetsched/v1/hook.pb-c.c

PLUGIN_WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla
PLUGIN_CFLAGS := -std=c11 -D_DEFAULT_SOURCE $(PLUGIN_WARNINGS) -I$(PLUGIN_C) -I$(HOOK_PB_DIR)
PLUGIN_HARDENING := -O2 -g -DNDEBUG -fPIC -fvisibility=hidden -fstack-protector-strong -D_FORTIFY_SOURCE=2
PLUGIN_LDFLAGS := -Wl,-z,relro,-z,now -Wl,--as-needed
PLUGIN_SHARED := $(PLUGIN_C)/wire.c $(PLUGIN_C)/settings.c $(HOOK_PB)
PLUGIN_SOURCES := $(PLUGIN_C)/job_submit_hetsched.c $(PLUGIN_C)/request.c $(PLUGIN_C)/spares.c $(PLUGIN_SHARED)
PLUGIN_HEADERS := $(PLUGIN_C)/wire.h $(PLUGIN_C)/settings.h $(PLUGIN_C)/request.h $(PLUGIN_C)/spares.h
SLURM_HEADERS_DIR := build/slurm-headers

.PHONY: plugin hook-program plugin-install plugin-test plugin-matrix plugin-fuzz plugin-fuzz-run plugin-check-programs plugin-folder plugin-tools

plugin: ## Build the job_submit plugin and hetsched-hook
	@test -e $(SLURM_INCLUDE)/slurm/slurm_version.h || \
	    { echo "no slurm/slurm_version.h in $(SLURM_INCLUDE): install libslurm-dev or set SLURM_INCLUDE" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(PLUGIN_SO) $(HOOK_PROGRAM)

hook-program: $(HOOK_PROGRAM)

plugin-install: plugin ## Install the plugin, hetsched-hook and the slurmctld hooks under DESTDIR
	install -D -m 0644 $(PLUGIN_SO) $(DESTDIR)$(SLURM_PLUGIN_DIR)/job_submit_hetsched.so
	install -D -m 0755 $(HOOK_PROGRAM) $(DESTDIR)$(PREFIX)/lib/hetsched/hetsched-hook
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/lib/hetsched/hooks \
	    $(PLUGIN_C)/hooks/prolog-slurmctld $(PLUGIN_C)/hooks/epilog-slurmctld
	install -d $(DESTDIR)$(SYSCONFDIR)/hetsched
	test -e $(DESTDIR)$(SYSCONFDIR)/hetsched/plugin.conf || \
	    install -m 0644 $(PLUGIN_C)/plugin.conf $(DESTDIR)$(SYSCONFDIR)/hetsched/plugin.conf

$(HOOK_PB): proto/hetsched/v1/hook.proto
	@command -v protoc-c > /dev/null || { echo "install protobuf-c-compiler and libprotobuf-c-dev" >&2; exit 1; }
	@mkdir -p $(HOOK_PB_DIR)
	protoc-c -I proto --c_out=$(HOOK_PB_DIR) $<

$(PLUGIN_SO): $(PLUGIN_SOURCES) $(PLUGIN_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(PLUGIN_CFLAGS) $(PLUGIN_HARDENING) -isystem $(SLURM_INCLUDE) -shared -o $@.$$$$ $(filter %.c,$^) \
	    $(PLUGIN_LDFLAGS) -lprotobuf-c && mv $@.$$$$ $@

$(HOOK_PROGRAM): $(PLUGIN_C)/hetsched_hook.c $(PLUGIN_SHARED) $(PLUGIN_HEADERS)
	$(CC) $(PLUGIN_CFLAGS) $(PLUGIN_HARDENING) -pie -o $@.$$$$ $(filter %.c,$^) $(PLUGIN_LDFLAGS) -lprotobuf-c && \
	    mv $@.$$$$ $@

# Slurm 22.05, 24.11 and 26.05, as Debian 12, 13 and forky carry them.
plugin-matrix: ## Compile the plugin for three Slurm releases
	tests/plugin/fetch_headers.sh $(SLURM_HEADERS_DIR)
	@for release in bookworm trixie forky; do \
	    $(MAKE) --no-print-directory plugin SLURM_INCLUDE=$(SLURM_HEADERS_DIR)/$$release/usr/include || exit 1; \
	done

# ---- tests: the plugin's sources with a scripted daemon instead of slurmctld ----

PLUGIN_TESTS := tests/plugin
PLUGIN_CHECK = $(PLUGIN_BUILD)/check
CHECK_HEADERS := $(wildcard $(PLUGIN_TESTS)/*.h) $(PLUGIN_HEADERS) $(PLUGIN_C)/job_submit_hetsched.c $(PLUGIN_C)/request.c
CHECK_CFLAGS = $(PLUGIN_CFLAGS) -I$(PLUGIN_TESTS) -isystem $(SLURM_INCLUDE) -g -O1 -DHETSCHED_PLUGIN_CONF='"plugin.conf"'
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_SECONDS ?= 20
CLANG := $(shell command -v clang)

CHECK_PROGRAMS = $(addprefix $(PLUGIN_CHECK)/,check_plugin check_plugin_sanitized hetsched-hook fuzz_reply fuzz_request \
    $(if $(CLANG),libfuzz_reply libfuzz_request))

# Each program is made of the source that its name says (check_plugin.c and fuzz_reply.c include the plugin's,
# fuzz_request.c includes request.c) and of the rest.
CHECK_REST := $(PLUGIN_TESTS)/stand_ins.c $(PLUGIN_C)/spares.c $(PLUGIN_SHARED)
CHECK_DEPENDS := $(CHECK_HEADERS) $(CHECK_REST) $(wildcard $(PLUGIN_TESTS)/*.c)

$(PLUGIN_CHECK)/check_plugin: $(CHECK_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(CHECK_CFLAGS) -o $@ $(PLUGIN_TESTS)/check_plugin.c $(PLUGIN_TESTS)/server.c $(PLUGIN_C)/request.c $(CHECK_REST) -lprotobuf-c

$(PLUGIN_CHECK)/check_plugin_sanitized: $(CHECK_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(CHECK_CFLAGS) $(SANITIZE) -o $@ $(PLUGIN_TESTS)/check_plugin.c $(PLUGIN_TESTS)/server.c $(PLUGIN_C)/request.c \
	    $(CHECK_REST) -lprotobuf-c

$(PLUGIN_CHECK)/hetsched-hook: $(PLUGIN_C)/hetsched_hook.c $(PLUGIN_SHARED) $(PLUGIN_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CHECK_CFLAGS) $(SANITIZE) -o $@ $(filter %.c,$^) -lprotobuf-c

$(PLUGIN_CHECK)/fuzz_reply $(PLUGIN_CHECK)/libfuzz_reply: FUZZ_REST = $(PLUGIN_C)/request.c $(CHECK_REST)
$(PLUGIN_CHECK)/fuzz_request $(PLUGIN_CHECK)/libfuzz_request: FUZZ_REST = $(CHECK_REST)

$(PLUGIN_CHECK)/fuzz_reply $(PLUGIN_CHECK)/fuzz_request: $(CHECK_DEPENDS)
	@mkdir -p $(@D)
	$(CC) $(CHECK_CFLAGS) $(SANITIZE) -o $@ $(PLUGIN_TESTS)/$(@F).c $(PLUGIN_TESTS)/fuzz_main.c $(FUZZ_REST) -lprotobuf-c

$(PLUGIN_CHECK)/libfuzz_reply $(PLUGIN_CHECK)/libfuzz_request: $(CHECK_DEPENDS)
	@mkdir -p $(@D)
	$(CLANG) $(CHECK_CFLAGS) -fsanitize=fuzzer $(SANITIZE) -o $@ $(PLUGIN_TESTS)/$(@F:lib%=%).c $(FUZZ_REST) -lprotobuf-c

plugin-check-programs: $(CHECK_PROGRAMS)

plugin-tools:
	$(PLUGIN_TESTS)/install_tools.sh

plugin-test: plugin-tools venv plugin-matrix ## Test the plugin without slurmctld: cases, valgrind, sanitizers, short fuzzing
	$(PY) -m pytest -q $(PLUGIN_TESTS)

plugin-fuzz: ## Fuzz the plugin for FUZZ_SECONDS each: replies of the daemon, requests of users
	tests/plugin/fetch_headers.sh $(SLURM_HEADERS_DIR)
	$(MAKE) --no-print-directory plugin-fuzz-run SLURM_INCLUDE=$(SLURM_HEADERS_DIR)/forky/usr/include

plugin-fuzz-run: $(CHECK_PROGRAMS)
	tests/plugin/fuzz.sh $(PLUGIN_CHECK) $(FUZZ_SECONDS)

plugin-folder:
	@echo $(PLUGIN_BUILD)
