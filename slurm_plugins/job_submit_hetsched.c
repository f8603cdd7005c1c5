/*
 * job_submit_hetsched.c - asks hetschedd what a job's GPU request should become
 *
 * slurmctld calls job_submit() for each sbatch, srun and salloc and job_modify() for each "scontrol update",
 * with its job lock held: whatever happens here, it is over within the deadline of plugin.conf (100 ms), and
 * after some misses in a row the daemon is not asked at all for a while. Without an answer a job passes as it
 * is; only a request that Slurm cannot read (a slice, "gpu:1g.10gb") is turned down with a sentence.
 *
 * The plugin decides nothing: it packs the job description (proto/hetsched/v1/hook.proto), and applies the
 * reply wholly or not at all. See https://slurm.schedmd.com/job_submit_plugins.html for the plugin's interface.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h> /* slurm_info() and its sisters */

#include "request.h"
#include "settings.h"
#include "spares.h"
#include "wire.h"

#define EXPORTED __attribute__((visibility("default")))

/* slurmctld exports these; the public headers do not declare them. */
extern char *slurm_xstrdup(const char *text);
extern void slurm_xfree(void **pointer);

#define VALUE_BYTES_MAX 4096
#define MESSAGE_BYTES_MAX 2048

typedef Hetsched__V1__HookRequest HookRequest;
typedef Hetsched__V1__HookReply HookReply;
typedef Hetsched__V1__Change Change;

EXPORTED const char plugin_name[] = "hetsched: heterogeneity-aware GPU requests";
EXPORTED const char plugin_type[] = "job_submit/hetsched";
EXPORTED const uint32_t plugin_version = SLURM_VERSION_NUMBER;

static struct hook_settings settings;
static struct wire_line line = WIRE_LINE_INIT;
static atomic_int misses_in_a_row;
static _Atomic int64_t silent_until_ms;

/* Adds a sentence to what the user will read, without control characters and with a bound. */
static void tell(char **err_msg, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(char **err_msg, const char *format, ...)
{
	char text[2 * MESSAGE_BYTES_MAX] = "";
	size_t used = 0;
	va_list arguments;

	if (!err_msg)
		return;
	if (*err_msg && **err_msg) /* another plugin spoke before */
		used = (size_t) snprintf(text, MESSAGE_BYTES_MAX, "%.*s\n", MESSAGE_BYTES_MAX - 2, *err_msg);
	va_start(arguments, format);
	vsnprintf(text + used, MESSAGE_BYTES_MAX, format, arguments);
	va_end(arguments);
	for (char *at = text + used; *at; at++)
		if (iscntrl((unsigned char) *at) && *at != '\n')
			*at = ' ';
	slurm_xfree((void **) err_msg);
	*err_msg = slurm_xstrdup(text);
}

/* ---- asking ---- */

static void count_miss(const char *why)
{
	int misses = atomic_fetch_add(&misses_in_a_row, 1) + 1;
	slurm_debug("hetsched: no answer (%s), %d in a row", why, misses);
	if (misses < settings.misses)
		return;
	atomic_store(&silent_until_ms, wire_now_ms() + (int64_t) settings.silence_s * 1000);
	slurm_error("hetsched: %d questions in a row without an answer (%s); not asking for %d s", misses, why,
		    settings.silence_s);
}

static void count_answer(void)
{
	if (atomic_exchange(&misses_in_a_row, 0) >= settings.misses)
		slurm_info("hetsched: the daemon answers again");
}

/*
 * The daemon lives and cost no time, so this is no miss: else one user's request to which no sound answer can be
 * made, sent some times, would silence the daemon for all.
 */
static void answer_of_no_use(const char *why)
{
	slurm_error("hetsched: an answer is passed over: %s", why);
	count_answer();
}

/* The reply, or NULL: there is none, or the daemon says that it could not serve the request. */
static HookReply *ask(const HookRequest *request)
{
	struct spares_used used;
	HookReply *reply = NULL;

	if (wire_is_kept(&line)) { /* the daemon that gave spares lives, and stands by them */
		reply = spares_take(request);
		if (reply)
			return reply;
	} else {
		spares_clear();
	}
	if (wire_now_ms() < atomic_load(&silent_until_ms))
		return NULL;
	enum wire_result result = wire_ask(&line, settings.socket, settings.daemon_uid, settings.deadline_ms,
					   spares_used(&used), request, &reply);
	if (result == WIRE_TOO_LONG)
		slurm_info("hetsched: a job description is too long to be asked about");
	else if (result == WIRE_GARBAGE)
		answer_of_no_use(wire_result_text(result));
	else if (result)
		count_miss(wire_result_text(result));
	if (result)
		return NULL;
	if (reply->what_case == HETSCHED__V1__HOOK_REPLY__WHAT_SUBMIT)
		spares_keep(request, reply);
	if (reply->what_case != HETSCHED__V1__HOOK_REPLY__WHAT_ERROR)
		return reply;
	slurm_info("hetsched: the daemon could not serve a request: %.100s", reply->error);
	count_answer();
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return NULL;
}

/* ---- applying ---- */

static char **text_field(job_desc_msg_t *job, Hetsched__V1__Field field)
{
	switch ((int) field) {
	case HETSCHED__V1__FIELD__TRES_PER_NODE:
		return &job->tres_per_node;
	case HETSCHED__V1__FIELD__TRES_PER_JOB:
		return &job->tres_per_job;
	case HETSCHED__V1__FIELD__TRES_PER_SOCKET:
		return &job->tres_per_socket;
	case HETSCHED__V1__FIELD__TRES_PER_TASK:
		return &job->tres_per_task;
	case HETSCHED__V1__FIELD__TRES_BIND:
		return &job->tres_bind;
	case HETSCHED__V1__FIELD__CPUS_PER_TRES:
		return &job->cpus_per_tres;
	case HETSCHED__V1__FIELD__MEM_PER_TRES:
		return &job->mem_per_tres;
	case HETSCHED__V1__FIELD__FEATURES:
		return &job->features;
	case HETSCHED__V1__FIELD__PREFER:
		return &job->prefer;
	case HETSCHED__V1__FIELD__ADMIN_COMMENT:
		return &job->admin_comment;
	case HETSCHED__V1__FIELD__EXCLUDED_NODES:
		return &job->exc_nodes;
	}
	return NULL;
}

/* Where a number of the job lives; an unset one holds Slurm's NO_VAL of that width. */
struct number_field {
	void *at;
	size_t size;
	uint64_t high;
};

static struct number_field number_field(job_desc_msg_t *job, Hetsched__V1__Field field)
{
	switch ((int) field) {
	case HETSCHED__V1__FIELD__NTASKS_PER_TRES:
		return (struct number_field) {&job->ntasks_per_tres, sizeof(job->ntasks_per_tres), NO_VAL16 - 1};
	case HETSCHED__V1__FIELD__REQUEUE:
		return (struct number_field) {&job->requeue, sizeof(job->requeue), 1};
	case HETSCHED__V1__FIELD__MIN_NODES:
		return (struct number_field) {&job->min_nodes, sizeof(job->min_nodes), NO_VAL - 1};
	case HETSCHED__V1__FIELD__MAX_NODES:
		return (struct number_field) {&job->max_nodes, sizeof(job->max_nodes), NO_VAL - 1};
	case HETSCHED__V1__FIELD__MIN_CPUS:
		return (struct number_field) {&job->min_cpus, sizeof(job->min_cpus), NO_VAL - 1};
	case HETSCHED__V1__FIELD__MEMORY_PER_NODE_MIB:
		return (struct number_field) {&job->pn_min_memory, sizeof(job->pn_min_memory), MEM_PER_CPU - 1};
	}
	return (struct number_field) {NULL, 0, 0};
}

static bool parse_number(const char *value, uint64_t high, uint64_t *number)
{
	if (!*value || strlen(value) > 20 || value[strspn(value, "0123456789")])
		return false;
	errno = 0;
	*number = strtoull(value, NULL, 10);
	return !errno && *number <= high;
}

static void set_number(struct number_field field, const char *value)
{
	uint64_t number = NO_VAL64;
	bool is_number = parse_number(value, field.high, &number);

	if (field.size == sizeof(uint16_t))
		*(uint16_t *) field.at = is_number ? (uint16_t) number : NO_VAL16;
	else if (field.size == sizeof(uint32_t))
		*(uint32_t *) field.at = is_number ? (uint32_t) number : NO_VAL;
	else
		*(uint64_t *) field.at = number;
}

/* Fields of a later daemon are passed over; a value that no field can hold spoils the whole reply. */
static bool change_is_sound(job_desc_msg_t *job, const Change *change)
{
	struct number_field number = number_field(job, change->field);
	uint64_t ignored;

	if (strlen(change->value) > VALUE_BYTES_MAX)
		return false;
	for (const char *at = change->value; *at; at++)
		if (iscntrl((unsigned char) *at))
			return false;
	return !number.at || !*change->value || parse_number(change->value, number.high, &ignored);
}

static void apply_change(job_desc_msg_t *job, const Change *change)
{
	char **text = text_field(job, change->field);
	struct number_field number = number_field(job, change->field);

	if (text) {
		slurm_xfree((void **) text);
		*text = *change->value ? slurm_xstrdup(change->value) : NULL;
	} else if (number.at) {
		set_number(number, change->value);
	} else {
		slurm_debug("hetsched: field %d is not known here and left alone", (int) change->field);
	}
}

/* slurmctld walks the array to its NULL as well as by env_size: both are kept right. */
static void drop_variable(job_desc_msg_t *job, const char *name)
{
	size_t size = strlen(name);
	uint32_t kept = 0;

	if (!job->environment || !size)
		return;
	for (uint32_t i = 0; i < job->env_size; i++) {
		char *variable = job->environment[i];
		if (variable && !strncmp(variable, name, size) && variable[size] == '=')
			slurm_xfree((void **) &variable);
		else
			job->environment[kept++] = variable;
	}
	for (uint32_t i = kept; i < job->env_size; i++)
		job->environment[i] = NULL;
	job->env_size = kept;
}

/*
 * Brings a reply to the job. SLURM_SUCCESS, ESLURM_INVALID_GRES for a refusal, or SLURM_ERROR when the reply
 * makes no sense; then nothing of it was applied.
 */
static int apply_submit_reply(job_desc_msg_t *job, const HookReply *reply, char **err_msg)
{
	if (reply->what_case != HETSCHED__V1__HOOK_REPLY__WHAT_SUBMIT)
		return SLURM_ERROR;
	const Hetsched__V1__SubmitReply *submit = reply->submit;
	bool rewritten = submit->verdict == HETSCHED__V1__VERDICT__REWRITTEN;

	if (submit->verdict == HETSCHED__V1__VERDICT__REFUSED) {
		tell(err_msg, "%s", *submit->user_message ? submit->user_message : "hetsched refused this request");
		return ESLURM_INVALID_GRES;
	}
	if (!rewritten && submit->verdict != HETSCHED__V1__VERDICT__UNCHANGED)
		return SLURM_ERROR;
	for (size_t i = 0; i < submit->n_changes; i++)
		if (!change_is_sound(job, submit->changes[i]))
			return SLURM_ERROR;
	for (size_t i = 0; i < submit->n_changes; i++) /* "unchanged" may still leave its mark in the record */
		if (rewritten || submit->changes[i]->field == HETSCHED__V1__FIELD__ADMIN_COMMENT)
			apply_change(job, submit->changes[i]);
	for (size_t i = 0; rewritten && i < submit->n_drop_environment; i++)
		drop_variable(job, submit->drop_environment[i]);
	if (*submit->user_message)
		tell(err_msg, "%s", submit->user_message);
	return SLURM_SUCCESS;
}

static int without_answer(const job_desc_msg_t *job, const struct packing *packing, char **err_msg)
{
	char slice[SLICE_BYTES_MAX];

	if (!settings.refuse_slices)
		return SLURM_SUCCESS;
	if (job_names_slice(job, slice)) {
		tell(err_msg, "hetsched is not answering, so the GPU slice %s cannot be set up now; "
		     "try again shortly, or ask for a whole GPU with --gres=gpu:1", slice);
		return ESLURM_INVALID_GRES;
	}
	if (has_requirement(job, packing)) {
		tell(err_msg, "hetsched is not answering, so what this job's " DIRECTIVE " lines or comment require "
		     "cannot be looked up now; try again shortly, or take them out");
		return ESLURM_INVALID_GRES;
	}
	return SLURM_SUCCESS;
}

/* ---- updates of jobs that exist ---- */

static int apply_modify_reply(const HookReply *reply, char **err_msg)
{
	if (reply->what_case != HETSCHED__V1__HOOK_REPLY__WHAT_MODIFY)
		return SLURM_ERROR;
	const Hetsched__V1__ModifyReply *modify = reply->modify;

	if (modify->verdict == HETSCHED__V1__VERDICT__UNCHANGED)
		return SLURM_SUCCESS;
	if (modify->verdict != HETSCHED__V1__VERDICT__REFUSED)
		return SLURM_ERROR;
	tell(err_msg, "%s", *modify->user_message ? modify->user_message : "hetsched refused this change");
	return ESLURM_ACCESS_DENIED;
}

/* Only what could turn a job into one with other slices than it was checked for is stopped. */
static int modify_without_answer(const job_desc_msg_t *job, char **err_msg)
{
	char slice[SLICE_BYTES_MAX];

	if (!job_asks_for(job, "shard") && !job_names_slice(job, slice))
		return SLURM_SUCCESS;
	tell(err_msg, "hetsched is not answering, so the GPU request of this job cannot be changed now; "
	     "try again shortly");
	return ESLURM_ACCESS_DENIED;
}

/* ---- what slurmctld calls ---- */

/* Before 24.11 the interface may have no place for a message, and to write there would crash slurmctld. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
#define MODIFY_HAS_MESSAGE 1
#endif

EXPORTED int init(void);
EXPORTED int fini(void);
EXPORTED int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg);
#ifdef MODIFY_HAS_MESSAGE
EXPORTED int job_modify(job_desc_msg_t *job, void *record, uint32_t submit_uid, char **err_msg);
#else
EXPORTED int job_modify(job_desc_msg_t *job, void *record, uint32_t submit_uid);
#endif

EXPORTED int init(void)
{
	char problem[100];
	int wrong_line = settings_read(HETSCHED_PLUGIN_CONF, &settings, problem, sizeof(problem));

	if (wrong_line)
		slurm_error("hetsched: %s line %d: %s; its default stays", HETSCHED_PLUGIN_CONF, wrong_line, problem);
	atomic_store(&misses_in_a_row, 0);
	atomic_store(&silent_until_ms, 0);
	slurm_info("hetsched: asking %s, deadline %d ms", settings.socket, settings.deadline_ms);
	return SLURM_SUCCESS;
}

EXPORTED int fini(void)
{
	spares_clear();
	wire_hang_up(&line);
	return SLURM_SUCCESS;
}

static bool is_privileged(uint32_t uid)
{
	return uid == 0 || uid == geteuid(); /* slurmctld runs as SlurmUser */
}

/* Asks, and brings the reply to the job; SLURM_ERROR if there is none or it makes no sense. */
static int ask_and_apply(const struct packing *packing, job_desc_msg_t *job, char **err_msg)
{
	bool submit = packing->request.what_case == HETSCHED__V1__HOOK_REQUEST__WHAT_SUBMIT;
	HookReply *reply = ask(&packing->request);

	if (!reply)
		return SLURM_ERROR;
	int rc = submit ? apply_submit_reply(job, reply, err_msg) : apply_modify_reply(reply, err_msg);
	if (rc == SLURM_ERROR)
		answer_of_no_use("it makes no sense for this job");
	else
		count_answer();
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return rc;
}

EXPORTED int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	struct packing packing;
	int rc = SLURM_SUCCESS;

	packing_init(&packing);
	pack_directives(&packing, job->script);
	if (concerns_gpus(job, &packing) && !settings_disabled(&settings)) {
		bool for_another = is_privileged(submit_uid) && job->user_id != NO_VAL;
		pack_submit(&packing, job, for_another ? job->user_id : submit_uid);
		rc = ask_and_apply(&packing, job, err_msg);
		if (rc == SLURM_ERROR)
			rc = without_answer(job, &packing, err_msg);
	}
	packing_release(&packing);
	return rc;
}

static int guard_modify(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	struct packing packing;
	int rc = SLURM_SUCCESS;

	if (is_privileged(submit_uid)) /* the daemon's own updates come this way, too */
		return SLURM_SUCCESS;
	packing_init(&packing);
	if (pack_modify(&packing, job, submit_uid) && !settings_disabled(&settings)) {
		rc = ask_and_apply(&packing, job, err_msg);
		if (rc == SLURM_ERROR)
			rc = modify_without_answer(job, err_msg);
	}
	packing_release(&packing);
	return rc;
}

#ifdef MODIFY_HAS_MESSAGE
EXPORTED int job_modify(job_desc_msg_t *job, void *record, uint32_t submit_uid, char **err_msg)
{
	(void) record;
	return guard_modify(job, submit_uid, err_msg);
}
#else
EXPORTED int job_modify(job_desc_msg_t *job, void *record, uint32_t submit_uid)
{
	(void) record;
	return guard_modify(job, submit_uid, NULL);
}
#endif
