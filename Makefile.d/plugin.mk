# The C parts: the job_submit plugin and the client of the slurmctld hooks.
# SLURM_CFLAGS names the headers to compile for, if not those of libslurm-dev in /usr/include.

PLUGIN_BUILD := build/plugin
PLUGIN_C := slurm_plugins
SLURM_CFLAGS ?=
PROTOBUF_C_LIBS ?= -lprotobuf-c
PLUGIN_WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla
PLUGIN_CFLAGS := -std=c11 -D_DEFAULT_SOURCE -O2 -g -DNDEBUG -fPIC -fvisibility=hidden -fstack-protector-strong -D_FORTIFY_SOURCE=2 \
    $(PLUGIN_WARNINGS) -I$(PLUGIN_C)
PLUGIN_LDFLAGS := -Wl,-z,relro,-z,now -Wl,--as-needed
HOOK_PB := $(PLUGIN_BUILD)/hetsched/v1/hook.pb-c.c
PLUGIN_SHARED := $(PLUGIN_C)/wire.c $(PLUGIN_C)/settings.c
PLUGIN_HEADERS := $(PLUGIN_C)/wire.h $(PLUGIN_C)/settings.h $(PLUGIN_C)/request.h $(HOOK_PB)

.PHONY: plugin plugin-test plugin-matrix plugin-fuzz

plugin: $(PLUGIN_BUILD)/job_submit_hetsched.so $(PLUGIN_BUILD)/hetsched-hook ## Build the job_submit plugin and hetsched-hook

$(HOOK_PB): proto/hetsched/v1/hook.proto
	@mkdir -p $(PLUGIN_BUILD)
	protoc-c -I proto --c_out=$(PLUGIN_BUILD) $<

$(PLUGIN_BUILD)/job_submit_hetsched.so: $(PLUGIN_C)/job_submit_hetsched.c $(PLUGIN_C)/request.c $(PLUGIN_SHARED) $(PLUGIN_HEADERS)
	$(CC) $(PLUGIN_CFLAGS) $(SLURM_CFLAGS) -I$(PLUGIN_BUILD) -shared -o $@.new $(filter %.c,$^) $(PLUGIN_LDFLAGS) $(PROTOBUF_C_LIBS)
	mv $@.new $@

$(PLUGIN_BUILD)/hetsched-hook: $(PLUGIN_C)/hetsched_hook.c $(PLUGIN_SHARED) $(PLUGIN_HEADERS)
	$(CC) $(PLUGIN_CFLAGS) -I$(PLUGIN_BUILD) -pie -o $@.new $(filter %.c,$^) $(PLUGIN_LDFLAGS) $(PROTOBUF_C_LIBS)
	mv $@.new $@
