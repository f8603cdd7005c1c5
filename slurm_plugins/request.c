/*
 * request.c - see request.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE /* strcasestr */
#include "request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define SCRIPT_SCAN_BYTES 65536
#define SCRIPT_SCAN_LINES 200

typedef Hetsched__V1__SubmitRequest SubmitRequest;

/* ---- strings ---- */

/* How many bytes follow the first one of a UTF-8 sequence; -1 if none begins like this. */
static int utf8_following(unsigned char first)
{
	if (first < 0x80)
		return 0;
	if (first >= 0xc2 && first < 0xe0)
		return 1;
	if ((first & 0xf0) == 0xe0)
		return 2;
	return first >= 0xf0 && first < 0xf5 ? 3 : -1;
}

/* As strict as protobuf: no overlong form, no surrogate, nothing above U+10FFFF. */
static bool is_utf8(const char *text)
{
	for (const unsigned char *at = (const unsigned char *) text; *at;) {
		int following = utf8_following(*at);
		if (following < 0 || (*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) ||
		    (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f))
			return false;
		for (at++; following; following--, at++)
			if ((*at & 0xc0) != 0x80)
				return false;
	}
	return true;
}

/* At most `size` bytes of `text`, freed with the packing. Out of memory gives "". */
static char *copied(struct packing *packing, const char *text, size_t size)
{
	char *copy = packing->copy_count < LENGTH(packing->copies) ? strndup(text, size) : NULL;
	if (!copy)
		return (char *) protobuf_c_empty_string;
	packing->copies[packing->copy_count++] = copy;
	if (!is_utf8(copy))
		for (char *at = copy; *at; at++)
			*at = isascii((unsigned char) *at) ? *at : '?';
	return copy;
}

/* protobuf strings must be UTF-8; what users write in a comment need not be. No copy where there is no need. */
static char *as_text(struct packing *packing, char *text)
{
	if (!text)
		return (char *) protobuf_c_empty_string;
	return is_utf8(text) ? text : copied(packing, text, strlen(text));
}

void packing_release(struct packing *packing)
{
	while (packing->copy_count)
		free(packing->copies[--packing->copy_count]);
}

/* ---- what the request is about ---- */

static bool has(const char *text, const char *what)
{
	return text && strcasestr(text, what);
}

/* Is `token` "1g.10gb", or "a100_1g.10gb", or "1g.10gb+me"? */
static bool names_profile(const char *token)
{
	for (const char *at = token; *at; at++) {
		const char *end = at + strspn(at, "0123456789");
		if (end == at || strncasecmp(end, "g.", 2))
			continue;
		size_t digits = strspn(end + 2, "0123456789");
		if (digits && !strncasecmp(end + 2 + digits, "gb", 2))
			return true;
	}
	return false;
}

/* Is `token` "20gb"? */
static bool names_memory(const char *token)
{
	size_t digits = strspn(token, "0123456789");
	return digits && !strcasecmp(token + digits, "gb");
}

static bool find_slice(const char *tres, char slice[SLICE_BYTES_MAX])
{
	static const char separators[] = ",;:=/()";
	bool after_gpu = false;

	for (const char *at = tres ? tres : ""; *at;) {
		size_t size = strcspn(at, separators);
		snprintf(slice, SLICE_BYTES_MAX, "%.*s", (int) (size < SLICE_BYTES_MAX ? size : SLICE_BYTES_MAX - 1), at);
		if (names_profile(slice) || (after_gpu && names_memory(slice)))
			return true;
		after_gpu = !strcasecmp(slice, "gpu");
		at += size;
		at += strspn(at, separators);
	}
	return false;
}

bool job_names_slice(const job_desc_msg_t *job, char slice[SLICE_BYTES_MAX])
{
	return find_slice(job->tres_per_node, slice) || find_slice(job->tres_per_job, slice) ||
	       find_slice(job->tres_per_task, slice) || find_slice(job->tres_per_socket, slice);
}

bool job_asks_for(const job_desc_msg_t *job, const char *gres)
{
	return has(job->tres_per_node, gres) || has(job->tres_per_job, gres) || has(job->tres_per_task, gres) ||
	       has(job->tres_per_socket, gres);
}

static bool is_set16(uint16_t number)
{
	return number && number != NO_VAL16 && number != INFINITE16;
}

static const char *comment_directive(const job_desc_msg_t *job)
{
	return job->comment ? strstr(job->comment, "hetsched:") : NULL;
}

bool concerns_gpus(const job_desc_msg_t *job, const struct packing *packing)
{
	char slice[SLICE_BYTES_MAX];
	return job_asks_for(job, "gpu") || job_asks_for(job, "shard") || has(job->cpus_per_tres, "gpu") ||
	       has(job->mem_per_tres, "gpu") || is_set16(job->ntasks_per_tres) || packing->submit.n_script_lines ||
	       comment_directive(job) || job_names_slice(job, slice);
}

bool has_requirement(const job_desc_msg_t *job, const struct packing *packing)
{
	static const char *const keys[] = {"min-vram", "min-cc", "types", "not-slower-than", "slices"};

	for (size_t key = 0; key < LENGTH(keys); key++) {
		if (has(comment_directive(job), keys[key]))
			return true;
		for (size_t line = 0; line < packing->submit.n_script_lines; line++)
			if (has(packing->submit.script_lines[line], keys[key]))
				return true;
	}
	return false;
}

/* ---- packing ---- */

static uint32_t number16(uint16_t number)
{
	return is_set16(number) ? number : 0;
}

static uint32_t number32(uint32_t number)
{
	return number == NO_VAL || number == INFINITE ? 0 : number;
}

void pack_directives(struct packing *packing, const char *script)
{
	SubmitRequest *submit = &packing->submit;
	const char *end = script ? script + strnlen(script, SCRIPT_SCAN_BYTES) : NULL;
	const char *line = script;

	submit->script_lines = packing->directives;
	for (int number = 0; line && line < end && number < SCRIPT_SCAN_LINES; number++) {
		const char *newline = memchr(line, '\n', (size_t) (end - line));
		size_t size = (size_t) ((newline ? newline : end) - line);
		size_t blank = strspn(line, " \t\r");
		if (blank < size && line[blank] != '#')
			break;
		size_t prefix = strlen(DIRECTIVE);
		if (size > prefix && !strncmp(line, DIRECTIVE, prefix) &&
		    (isspace((unsigned char) line[prefix]) || line[prefix] == ':') &&
		    submit->n_script_lines < DIRECTIVES_MAX) {
			size_t kept = size - prefix - 1;
			kept = kept < DIRECTIVE_BYTES_MAX ? kept : DIRECTIVE_BYTES_MAX;
			packing->directives[submit->n_script_lines++] = copied(packing, line + prefix + 1, kept);
		}
		line = newline ? newline + 1 : NULL;
	}
}

static bool is_gpu_variable(const char *variable)
{
	static const char *const prefixes[] = {"SLURM_GPUS", "SLURM_TRES_PER_TASK=", "SLURM_TRES_BIND=",
					       "SLURM_NTASKS_PER_GPU="};
	for (size_t i = 0; i < LENGTH(prefixes); i++)
		if (!strncmp(variable, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

static void pack_environment(struct packing *packing, const job_desc_msg_t *job)
{
	SubmitRequest *submit = &packing->submit;

	submit->gpu_environment = packing->environment;
	for (uint32_t i = 0; job->environment && i < job->env_size && job->environment[i]; i++)
		if (is_gpu_variable(job->environment[i]) && submit->n_gpu_environment < ENVIRONMENT_MAX)
			packing->environment[submit->n_gpu_environment++] =
				copied(packing, job->environment[i], ENVIRONMENT_BYTES_MAX);
}

static void pack_strings(struct packing *packing, const job_desc_msg_t *job)
{
	SubmitRequest *submit = &packing->submit;

	submit->partition = as_text(packing, job->partition);
	submit->account = as_text(packing, job->account);
	submit->qos = as_text(packing, job->qos);
	submit->job_name = as_text(packing, job->name);
	submit->comment = as_text(packing, job->comment);
	submit->features = as_text(packing, job->features);
	submit->prefer = as_text(packing, job->prefer);
	submit->tres_per_node = as_text(packing, job->tres_per_node);
	submit->tres_per_job = as_text(packing, job->tres_per_job);
	submit->tres_per_socket = as_text(packing, job->tres_per_socket);
	submit->tres_per_task = as_text(packing, job->tres_per_task);
	submit->tres_bind = as_text(packing, job->tres_bind);
	submit->cpus_per_tres = as_text(packing, job->cpus_per_tres);
	submit->mem_per_tres = as_text(packing, job->mem_per_tres);
	submit->required_nodes = as_text(packing, job->req_nodes);
	submit->excluded_nodes = as_text(packing, job->exc_nodes);
	submit->reservation = as_text(packing, job->reservation);
	submit->array_inx = as_text(packing, job->array_inx);
	submit->submit_host = as_text(packing, job->alloc_node);
}

static void pack_numbers(SubmitRequest *submit, const job_desc_msg_t *job)
{
	bool per_node = job->pn_min_memory != NO_VAL64 && !(job->pn_min_memory & MEM_PER_CPU);

	submit->ntasks_per_tres = number16(job->ntasks_per_tres);
	submit->min_nodes = number32(job->min_nodes);
	submit->max_nodes = number32(job->max_nodes);
	submit->num_tasks = number32(job->num_tasks);
	submit->ntasks_per_node = number16(job->ntasks_per_node);
	submit->cpus_per_task = number16(job->cpus_per_task);
	submit->time_limit_min = number32(job->time_limit);
	submit->memory_per_node_mib = per_node ? job->pn_min_memory : 0;
	submit->exclusive = job->shared == JOB_SHARED_NONE;
	submit->gpus_per_node_option = has(job->submit_line, "--gpus-per-node");
	submit->het_job = job->het_job_offset != NO_VAL;
	submit->het_job_offset = number32(job->het_job_offset);
}

void packing_init(struct packing *packing)
{
	packing->copy_count = 0;
	hetsched__v1__hook_request__init(&packing->request);
	hetsched__v1__submit_request__init(&packing->submit);
	hetsched__v1__modify_request__init(&packing->modify);
	packing->request.version = WIRE_VERSION;
}

/* Of a heterogeneous job only the first component has the script; srun and salloc always wait on a port. */
static bool is_batch(const job_desc_msg_t *job)
{
	return job->script || job->script_buf || (number32(job->het_job_offset) && !job->alloc_resp_port);
}

void pack_submit(struct packing *packing, const job_desc_msg_t *job, uint32_t uid)
{
	packing->request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_SUBMIT;
	packing->request.submit = &packing->submit;
	packing->submit.uid = uid;
	pack_strings(packing, job);
	pack_numbers(&packing->submit, job);
	pack_environment(packing, job);
	packing->submit.batch = is_batch(job);
	packing->submit.test_only = job->alloc_sid == NO_VAL; /* the one trace that --test-only leaves */
}

/* ---- modify ---- */

static void touch(struct packing *packing, bool is_touched, Hetsched__V1__Field field)
{
	if (is_touched)
		packing->touched[packing->modify.n_touched++] = field;
}

/* An update holds NULL or NO_VAL in what it leaves alone. */
static void pack_touched(struct packing *packing, const job_desc_msg_t *job)
{
	packing->modify.touched = packing->touched;
	touch(packing, job->tres_per_node, HETSCHED__V1__FIELD__TRES_PER_NODE);
	touch(packing, job->tres_per_job, HETSCHED__V1__FIELD__TRES_PER_JOB);
	touch(packing, job->tres_per_socket, HETSCHED__V1__FIELD__TRES_PER_SOCKET);
	touch(packing, job->tres_per_task, HETSCHED__V1__FIELD__TRES_PER_TASK);
	touch(packing, job->tres_bind, HETSCHED__V1__FIELD__TRES_BIND);
	touch(packing, job->cpus_per_tres, HETSCHED__V1__FIELD__CPUS_PER_TRES);
	touch(packing, job->mem_per_tres, HETSCHED__V1__FIELD__MEM_PER_TRES);
	touch(packing, job->ntasks_per_tres != NO_VAL16, HETSCHED__V1__FIELD__NTASKS_PER_TRES);
	touch(packing, job->features, HETSCHED__V1__FIELD__FEATURES);
	touch(packing, job->prefer, HETSCHED__V1__FIELD__PREFER);
	touch(packing, job->exc_nodes, HETSCHED__V1__FIELD__EXCLUDED_NODES);
	touch(packing, job->min_nodes != NO_VAL, HETSCHED__V1__FIELD__MIN_NODES);
	touch(packing, job->max_nodes != NO_VAL, HETSCHED__V1__FIELD__MAX_NODES);
	/* What follows is told with the rest, but is of no interest by itself. */
	touch(packing, job->admin_comment, HETSCHED__V1__FIELD__ADMIN_COMMENT);
	touch(packing, job->requeue != NO_VAL16, HETSCHED__V1__FIELD__REQUEUE);
	touch(packing, job->min_cpus != NO_VAL, HETSCHED__V1__FIELD__MIN_CPUS);
	touch(packing, job->pn_min_memory != NO_VAL64, HETSCHED__V1__FIELD__MEMORY_PER_NODE_MIB);
}

static bool is_guarded(const job_desc_msg_t *job)
{
	return job->tres_per_node || job->tres_per_job || job->tres_per_socket || job->tres_per_task ||
	       job->tres_bind || job->cpus_per_tres || job->mem_per_tres || job->features || job->prefer ||
	       job->exc_nodes || job->req_nodes || job->ntasks_per_tres != NO_VAL16 || job->min_nodes != NO_VAL ||
	       job->max_nodes != NO_VAL || job->num_tasks != NO_VAL;
}

static uint32_t numeric_job_id(const job_desc_msg_t *job)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	return job->step_id.job_id;
#else
	return job->job_id;
#endif
}

bool pack_modify(struct packing *packing, const job_desc_msg_t *job, uint32_t uid)
{
	if (!is_guarded(job))
		return false;
	packing->request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_MODIFY;
	packing->request.modify = &packing->modify;
	packing->modify.uid = uid;
	packing->modify.fields = &packing->submit;
	packing->submit.uid = uid;
	pack_strings(packing, job);
	pack_numbers(&packing->submit, job);
	pack_touched(packing, job);
	if (job->job_id_str) { /* scontrol; "12", "12_3", "12+1" */
		packing->modify.job_id = as_text(packing, job->job_id_str);
	} else {
		snprintf(packing->job_id, sizeof(packing->job_id), "%u", numeric_job_id(job));
		packing->modify.job_id = packing->job_id;
	}
	return true;
}
