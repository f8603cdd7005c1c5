/*
 * request.h - a job description of Slurm as a message of hook.proto, and what it asks for
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef HETSCHED_REQUEST_H
#define HETSCHED_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include <slurm/slurm.h>

#include "wire.h"

#define DIRECTIVE "#HETSCHED"
#define DIRECTIVES_MAX 32
#define DIRECTIVE_BYTES_MAX 256
#define ENVIRONMENT_MAX 16
#define ENVIRONMENT_BYTES_MAX 1024
#define SLICE_BYTES_MAX 64

/*
 * A request under construction. Its strings are those of the job description where possible: it must not
 * outlive them. The few that had to be copied are in `copies`.
 */
struct packing {
	Hetsched__V1__HookRequest request;
	Hetsched__V1__SubmitRequest submit;
	Hetsched__V1__ModifyRequest modify;
	Hetsched__V1__Field touched[32];
	char job_id[64];
	char *directives[DIRECTIVES_MAX];
	char *environment[ENVIRONMENT_MAX];
	char *copies[DIRECTIVES_MAX + ENVIRONMENT_MAX + 32];
	size_t copy_count;
};

void packing_init(struct packing *packing);
void packing_release(struct packing *packing);

/*
 * Packs the "#HETSCHED" lines of a script. Like sbatch, looks no further than its first command. A line longer
 * than DIRECTIVE_BYTES_MAX is cut there.
 */
void pack_directives(struct packing *packing, const char *script);

/* Packs all else that a submit tells; `uid` is the owner to be. */
void pack_submit(struct packing *packing, const job_desc_msg_t *job, uint32_t uid);

/* Packs an update of an existing job by `uid`. False if it touches nothing that hetsched guards. */
bool pack_modify(struct packing *packing, const job_desc_msg_t *job, uint32_t uid);

/* Has this job anything to do with GPUs? Needs the directives. */
bool concerns_gpus(const job_desc_msg_t *job, const struct packing *packing);

/* Copies the first slice ("1g.10gb"), or GPU by memory ("gpu:20gb"), that the job names to `slice`. */
bool job_names_slice(const job_desc_msg_t *job, char slice[SLICE_BYTES_MAX]);

/* Does any spelling of a GPU request of the job contain `gres`? */
bool job_asks_for(const job_desc_msg_t *job, const char *gres);

/* Do its directives demand something that would be lost if the job just passed? */
bool has_requirement(const job_desc_msg_t *job, const struct packing *packing);

#endif
