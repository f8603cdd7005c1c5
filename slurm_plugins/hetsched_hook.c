/*
 * hetsched_hook.c - hetsched-hook allocate|finish|ping: what PrologSlurmctld and EpilogSlurmctld run
 *
 * allocate  Slurm has allocated the job of SLURM_JOB_ID. Exit 1 only when the daemon says that this job can
 *           neither be served nor requeued; without an answer exit 0, for the node's prolog asks again.
 * finish    The job has ended. Always exit 0.
 * ping      Prints the daemon's version. Exit 1 if it does not answer.
 *
 * Environment: https://slurm.schedmd.com/prolog_epilog.html. slurmctld does not wait for these hooks, but the
 * job does; so a daemon that hangs is found out by a short ping before a long question is put to it.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "settings.h"
#include "wire.h"

#define PING_DEADLINE_MS 1000
#define EXIT_USAGE 2

typedef Hetsched__V1__HookRequest HookRequest;
typedef Hetsched__V1__HookReply HookReply;

/* slurmctld throws the output of its hooks away, people at a terminal do not read syslog: both get it. */
static void report(int priority, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report(int priority, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "hetsched-hook: %s\n", text);
	syslog(priority, "%s", text);
}

/* A number of the environment; false if it is absent or none. */
static bool environment_number(const char *name, uint32_t *number)
{
	const char *text = getenv(name);

	if (!text || !*text || text[strspn(text, "0123456789")])
		return false;
	errno = 0;
	unsigned long long value = strtoull(text, NULL, 10);
	if (errno || value > UINT32_MAX)
		return false;
	*number = (uint32_t) value;
	return true;
}

/* The reply if it is of the wanted kind; else NULL, and it has been said why. */
static HookReply *ask(const struct hook_settings *settings, int deadline_ms, const HookRequest *request,
		      Hetsched__V1__HookReply__WhatCase wanted)
{
	HookReply *reply;
	enum wire_result result = wire_ask(NULL, settings->socket, settings->daemon_uid, deadline_ms, NULL,
					   request, &reply);

	if (result) {
		report(LOG_WARNING, "hetschedd: %s (%s)", wire_result_text(result), settings->socket);
		return NULL;
	}
	if (reply->what_case == wanted)
		return reply;
	if (reply->what_case == HETSCHED__V1__HOOK_REPLY__WHAT_ERROR)
		report(LOG_WARNING, "hetschedd could not serve this: %.500s", reply->error);
	else
		report(LOG_WARNING, "hetschedd answered something else than it was asked");
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return NULL;
}

static HookReply *ping(const struct hook_settings *settings)
{
	HookRequest request = HETSCHED__V1__HOOK_REQUEST__INIT;
	Hetsched__V1__PingRequest ping_request = HETSCHED__V1__PING_REQUEST__INIT;

	request.version = WIRE_VERSION;
	request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_PING;
	request.ping = &ping_request;
	return ask(settings, PING_DEADLINE_MS, &request, HETSCHED__V1__HOOK_REPLY__WHAT_PING);
}

static bool is_alive(const struct hook_settings *settings)
{
	HookReply *reply = ping(settings);
	bool alive = reply;
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return alive;
}

static int run_ping(const struct hook_settings *settings)
{
	HookReply *reply = ping(settings);

	if (!reply)
		return EXIT_FAILURE;
	printf("hetschedd %.100s\n", reply->ping->daemon_version);
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return EXIT_SUCCESS;
}

static int act_on(uint32_t job_id, const Hetsched__V1__AllocateReply *allocate)
{
	switch ((int) allocate->action) {
	case HETSCHED__V1__ALLOCATE_REPLY__ACTION__PROCEED:
		return EXIT_SUCCESS;
	case HETSCHED__V1__ALLOCATE_REPLY__ACTION__GAVE_BACK:
		report(LOG_INFO, "job %u given back to the queue: %.500s", job_id, allocate->message);
		return EXIT_SUCCESS;
	case HETSCHED__V1__ALLOCATE_REPLY__ACTION__KILL:
		report(LOG_INFO, "job %u cannot be served here nor requeued: %.500s", job_id, allocate->message);
		return EXIT_FAILURE;
	}
	report(LOG_WARNING, "job %u: unknown action %d; going on", job_id, (int) allocate->action);
	return EXIT_SUCCESS;
}

static int run_allocate(const struct hook_settings *settings, uint32_t job_id)
{
	HookRequest request = HETSCHED__V1__HOOK_REQUEST__INIT;
	Hetsched__V1__AllocateRequest allocate = HETSCHED__V1__ALLOCATE_REQUEST__INIT;
	char *nodes = getenv("SLURM_JOB_NODELIST");

	allocate.job_id = job_id;
	allocate.node_list = nodes ? nodes : (char *) protobuf_c_empty_string;
	environment_number("SLURM_JOB_RESTART_COUNT", &allocate.restart_count); /* absent: 0 */
	if (!environment_number("SLURM_JOB_UID", &allocate.uid)) {
		report(LOG_ERR, "SLURM_JOB_UID is missing");
		return EXIT_USAGE;
	}
	if (!is_alive(settings))
		return EXIT_SUCCESS;
	request.version = WIRE_VERSION;
	request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_ALLOCATE;
	request.allocate = &allocate;
	HookReply *reply = ask(settings, settings->allocate_deadline_ms, &request,
			       HETSCHED__V1__HOOK_REPLY__WHAT_ALLOCATE);
	if (!reply)
		return EXIT_SUCCESS;
	int status = act_on(job_id, reply->allocate);
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return status;
}

static int run_finish(const struct hook_settings *settings, uint32_t job_id)
{
	HookRequest request = HETSCHED__V1__HOOK_REQUEST__INIT;
	Hetsched__V1__FinishRequest finish = HETSCHED__V1__FINISH_REQUEST__INIT;

	finish.job_id = job_id;
	environment_number("SLURM_JOB_RESTART_COUNT", &finish.restart_count);
	environment_number("SLURM_JOB_UID", &finish.uid);
	request.version = WIRE_VERSION;
	request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_FINISH;
	request.finish = &finish;
	hetsched__v1__hook_reply__free_unpacked(ask(settings, settings->finish_deadline_ms, &request,
						    HETSCHED__V1__HOOK_REPLY__WHAT_FINISH), NULL);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct hook_settings settings;
	char problem[100];
	uint32_t job_id;
	const char *verb = argc == 2 ? argv[1] : "";

	openlog("hetsched-hook", LOG_PID, LOG_DAEMON);
	int line = settings_read(HETSCHED_PLUGIN_CONF, &settings, problem, sizeof(problem));
	if (line)
		report(LOG_ERR, "%s line %d: %s; its default stays", HETSCHED_PLUGIN_CONF, line, problem);
	if (!strcmp(verb, "ping"))
		return run_ping(&settings);
	if (strcmp(verb, "allocate") && strcmp(verb, "finish")) {
		fprintf(stderr, "usage: hetsched-hook allocate|finish|ping\n");
		return EXIT_USAGE;
	}
	if (settings_disabled(&settings))
		return EXIT_SUCCESS;
	if (!environment_number("SLURM_JOB_ID", &job_id) || !job_id) {
		report(LOG_ERR, "SLURM_JOB_ID is missing; slurmctld sets it for PrologSlurmctld and EpilogSlurmctld");
		return EXIT_USAGE;
	}
	return !strcmp(verb, "allocate") ? run_allocate(&settings, job_id) : run_finish(&settings, job_id);
}
