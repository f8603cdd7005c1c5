/*
 * stand_ins.h - what slurmctld would give the plugin: its allocator, its log, a job description
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef STAND_INS_H
#define STAND_INS_H

#include <slurm/slurm.h>

char *slurm_xstrdup(const char *text);
void slurm_xfree(void **pointer);

/* What was logged since the last log_clear(). */
const char *log_text(void);
void log_clear(void);

/* A job description in which nothing is asked, as slurmctld hands it on. */
job_desc_msg_t *job_new(void);
void job_free(job_desc_msg_t *job);
void job_set(char **field, const char *value);
void job_add_environment(job_desc_msg_t *job, const char *variable);
void job_set_id(job_desc_msg_t *job, uint32_t id);

#endif
