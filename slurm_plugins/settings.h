/*
 * settings.h - what the hooks inside slurmctld read from /etc/hetsched/plugin.conf
 *
 * KEY=VALUE lines, '#' starts a comment. Every value has bounds; a line that cannot be read leaves the default
 * in force, so that a slip in this file never keeps slurmctld from starting.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef HETSCHED_SETTINGS_H
#define HETSCHED_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#ifndef HETSCHED_PLUGIN_CONF
#define HETSCHED_PLUGIN_CONF "/etc/hetsched/plugin.conf"
#endif

struct hook_settings {
	char socket[108];	   /* of hetschedd; as long as sun_path */
	char disabled_file[256];   /* while it exists, the hooks do nothing */
	int deadline_ms;	   /* for all of one submit or modify */
	int allocate_deadline_ms;  /* PrologSlurmctld; the job waits, slurmctld does not */
	int finish_deadline_ms;	   /* EpilogSlurmctld */
	int misses;		   /* this many in a row, and the plugin stops asking ... */
	int silence_s;		   /* ... for this long */
	uid_t daemon_uid;	   /* daemon_user: whom to believe besides root and oneself; -1 nobody */
	bool refuse_slices;	   /* slice_when_down=refuse: Slurm itself cannot read "1g.10gb" */
};

/* Fills `settings` with the defaults. */
void settings_default(struct hook_settings *settings);

/*
 * Reads `path` over the defaults. Returns 0, also when there is no such file, or the number of the first line
 * that could not be used; `problem` then says why.
 */
int settings_read(const char *path, struct hook_settings *settings, char *problem, size_t problem_size);

/* Is the flag file there that turns the hooks off? */
bool settings_disabled(const struct hook_settings *settings);

#endif
