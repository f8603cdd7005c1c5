/*
 * stand_ins.c - see stand_ins.h. Only for the harness: a plugin in slurmctld uses the real ones.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "stand_ins.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

static char logged[65536];

const char *log_text(void)
{
	return logged;
}

void log_clear(void)
{
	logged[0] = '\0';
}

static void log_line(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));
static void log_line(const char *format, va_list arguments)
{
	size_t used = strlen(logged);
	if (used > sizeof(logged) / 2)
		used = 0;
	vsnprintf(logged + used, sizeof(logged) - used, format, arguments);
	strncat(logged, "\n", sizeof(logged) - strlen(logged) - 1);
}

#define LOG_FUNCTION(name) \
	void name(const char *format, ...) \
	{ \
		va_list arguments; \
		va_start(arguments, format); \
		log_line(format, arguments); \
		va_end(arguments); \
	}

LOG_FUNCTION(slurm_info)
LOG_FUNCTION(slurm_error)
LOG_FUNCTION(slurm_debug)

char *slurm_xstrdup(const char *text)
{
	return text ? strdup(text) : NULL;
}

void slurm_xfree(void **pointer)
{
	free(*pointer);
	*pointer = NULL;
}

job_desc_msg_t *job_new(void)
{
	job_desc_msg_t *job = calloc(1, sizeof(*job));

	job->user_id = 1000;
	job->ntasks_per_tres = job->requeue = job->ntasks_per_node = job->cpus_per_task = job->shared = NO_VAL16;
	job->min_nodes = job->max_nodes = job->num_tasks = job->time_limit = job->min_cpus = NO_VAL;
	job->het_job_offset = NO_VAL;
	job->pn_min_memory = NO_VAL64;
	return job;
}

void job_set(char **field, const char *value)
{
	free(*field);
	*field = value ? strdup(value) : NULL;
}

/* Keeps the array as slurmctld has it: env_size strings and a NULL. */
void job_add_environment(job_desc_msg_t *job, const char *variable)
{
	job->environment = realloc(job->environment, (job->env_size + 2) * sizeof(char *));
	job->environment[job->env_size++] = strdup(variable);
	job->environment[job->env_size] = NULL;
}

void job_set_id(job_desc_msg_t *job, uint32_t id)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	job->step_id.job_id = id;
#else
	job->job_id = id;
#endif
}

void job_free(job_desc_msg_t *job)
{
	char **strings[] = {
		&job->tres_per_node, &job->tres_per_job, &job->tres_per_socket, &job->tres_per_task, &job->tres_bind,
		&job->cpus_per_tres, &job->mem_per_tres, &job->features, &job->prefer, &job->admin_comment,
		&job->exc_nodes, &job->req_nodes, &job->comment, &job->name, &job->script, &job->job_id_str,
		&job->partition, &job->account, &job->alloc_node, &job->array_inx,
	};
	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
		free(*strings[i]);
	for (uint32_t i = 0; i < job->env_size; i++)
		free(job->environment[i]);
	free(job->environment);
	free(job);
}
