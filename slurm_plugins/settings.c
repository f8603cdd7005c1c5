/*
 * settings.c - see settings.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct number_key {
	const char *name;
	size_t offset;
	long low, high;
};

static const struct number_key NUMBERS[] = {
	{"deadline_ms", offsetof(struct hook_settings, deadline_ms), 1, 5000},
	{"allocate_deadline_ms", offsetof(struct hook_settings, allocate_deadline_ms), 1, 300000},
	{"finish_deadline_ms", offsetof(struct hook_settings, finish_deadline_ms), 1, 300000},
	{"misses", offsetof(struct hook_settings, misses), 1, 1000},
	{"silence_s", offsetof(struct hook_settings, silence_s), 0, 3600},
};

void settings_default(struct hook_settings *settings)
{
	*settings = (struct hook_settings) {
		.socket = "/run/hetsched/hook.sock",
		.disabled_file = "/etc/hetsched/disabled",
		.deadline_ms = 100,
		.allocate_deadline_ms = 20000,
		.finish_deadline_ms = 5000,
		.misses = 5,
		.silence_s = 10,
		.daemon_uid = (uid_t) -1,
		.refuse_slices = true,
	};
}

static const char *set_path(char *to, size_t size, const char *value)
{
	if (value[0] != '/')
		return "the path must begin with /";
	if (strlen(value) >= size)
		return "the path is too long";
	memcpy(to, value, strlen(value) + 1);
	return NULL;
}

static const char *set_number(struct hook_settings *settings, const struct number_key *key, const char *value)
{
	char *end;
	errno = 0;
	long number = strtol(value, &end, 10);

	if (errno || end == value || *end)
		return "the value must be a whole number";
	if (number < key->low || number > key->high)
		return "the value is out of bounds";
	*(int *) ((char *) settings + key->offset) = (int) number;
	return NULL;
}

static const char *set_user(uid_t *uid, const char *name)
{
	const struct passwd *user = getpwnam(name);

	if (!user)
		return "no such user";
	*uid = user->pw_uid;
	return NULL;
}

static const char *set(struct hook_settings *settings, const char *name, const char *value)
{
	if (!strcmp(name, "socket"))
		return set_path(settings->socket, sizeof(settings->socket), value);
	if (!strcmp(name, "disabled_file"))
		return set_path(settings->disabled_file, sizeof(settings->disabled_file), value);
	if (!strcmp(name, "daemon_user"))
		return set_user(&settings->daemon_uid, value);
	if (!strcmp(name, "slice_when_down")) {
		if (strcmp(value, "refuse") && strcmp(value, "pass"))
			return "the value must be refuse or pass";
		settings->refuse_slices = !strcmp(value, "refuse");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]); i++)
		if (!strcmp(name, NUMBERS[i].name))
			return set_number(settings, &NUMBERS[i], value);
	return "no such key";
}

static char *trim(char *text)
{
	while (isspace((unsigned char) *text))
		text++;
	char *end = text + strlen(text);
	while (end > text && isspace((unsigned char) end[-1]))
		*--end = '\0';
	return text;
}

/* NULL if the line was empty or used, else what is wrong with it. */
static const char *use_line(struct hook_settings *settings, char *line)
{
	line[strcspn(line, "#\n")] = '\0';
	char *name = trim(line);
	if (!*name)
		return NULL;
	char *equals = strchr(name, '=');
	if (!equals)
		return "write KEY=VALUE";
	*equals = '\0';
	return set(settings, trim(name), trim(equals + 1));
}

int settings_read(const char *path, struct hook_settings *settings, char *problem, size_t problem_size)
{
	char line[512];
	int number = 0, first_bad = 0;

	settings_default(settings);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	while (number < 200 && fgets(line, sizeof(line), file)) {
		number++;
		const char *wrong = use_line(settings, line);
		if (wrong && !first_bad) {
			first_bad = number;
			snprintf(problem, problem_size, "%s", wrong);
		}
	}
	fclose(file);
	return first_bad;
}

bool settings_disabled(const struct hook_settings *settings)
{
	return !access(settings->disabled_file, F_OK);
}
