/*
 * fuzz_reply.c - any bytes as a reply of the daemon
 *
 * Whatever comes: no memory error, no leak, a job that is either rewritten soundly or as it was, and an
 * environment that ends with NULL where env_size says. With clang a libFuzzer target; with any other compiler
 * fuzz_main.c drives it.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "job_submit_hetsched.c"

#include "fuzz.h"
#include "stand_ins.h"

static job_desc_msg_t *sample_job(void)
{
	job_desc_msg_t *job = job_new();

	job_set(&job->tres_per_node, "gres/gpu:1g.10gb:1");
	job_set(&job->features, "big");
	job_add_environment(job, "PATH=/bin");
	job_add_environment(job, "SLURM_GPUS=1");
	job_add_environment(job, "SLURM_TRES_BIND=gres/gpu:per_task:1");
	job_add_environment(job, "HOME=/");
	return job;
}

static void must(bool fine, const char *what)
{
	if (fine)
		return;
	fprintf(stderr, "broken promise: %s\n", what);
	abort();
}

static void check_text(const char *text)
{
	must(!text || strlen(text) <= VALUE_BYTES_MAX, "a value within bounds");
	for (const char *at = text; at && *at; at++)
		must(!iscntrl((unsigned char) *at), "no control character in a value");
}

static void check_job(const job_desc_msg_t *job, int rc)
{
	must(rc == SLURM_SUCCESS || rc == SLURM_ERROR || rc == ESLURM_INVALID_GRES, "a known result");
	must(!job->environment[job->env_size], "an environment that ends with NULL");
	for (uint32_t i = 0; i < job->env_size; i++)
		must(job->environment[i], "as many variables as env_size says");
	check_text(job->tres_per_node);
	check_text(job->features);
	check_text(job->admin_comment);
	if (rc == SLURM_SUCCESS)
		return;
	must(!strcmp(job->tres_per_node, "gres/gpu:1g.10gb:1") && !strcmp(job->features, "big"), "an untouched job");
	must(job->env_size == 4 && !job->admin_comment && job->min_nodes == NO_VAL, "an untouched job");
}

static void apply(HookReply *reply)
{
	job_desc_msg_t *job = sample_job();
	char *err_msg = NULL;

	check_job(job, apply_submit_reply(job, reply, &err_msg));
	must(!err_msg || strlen(err_msg) < 2 * MESSAGE_BYTES_MAX, "a message within bounds");
	slurm_xfree((void **) &err_msg);
	apply_modify_reply(reply, &err_msg);
	slurm_xfree((void **) &err_msg);
	job_free(job);
}

/* Spares are kept and taken as whole replies. */
static void apply_spares(HookReply *reply)
{
	HookRequest request = HETSCHED__V1__HOOK_REQUEST__INIT;
	HookReply *spare;

	request.version = WIRE_VERSION;
	spares_keep(&request, reply);
	while ((spare = spares_take(&request))) {
		apply(spare);
		hetsched__v1__hook_reply__free_unpacked(spare, NULL);
	}
	spares_keep(&request, reply);
	spares_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	HookReply *reply = wire_decode(bytes, size);

	if (!reply) /* what wire_decode() turns away must do no harm further on either */
		reply = hetsched__v1__hook_reply__unpack(NULL, size, bytes);
	if (reply) {
		apply(reply);
		apply_spares(reply);
	}
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	log_clear();
	return 0;
}

/* A reply that uses all there is, to start from. */
size_t fuzz_seed(uint8_t *bytes, size_t room)
{
	static const char *const values[] = {"", "", "gres/shard:4", "0", "7", "1", "hetsched:d=12", "65533", "a100|h100"};
	HookReply reply = HETSCHED__V1__HOOK_REPLY__INIT;
	Hetsched__V1__SubmitReply submit = HETSCHED__V1__SUBMIT_REPLY__INIT;
	Change changes[18], *list[18];
	char *drop[] = {"SLURM_GPUS", "SLURM_TRES_BIND"};

	for (size_t i = 0; i < 18; i++) {
		hetsched__v1__change__init(&changes[i]);
		changes[i].field = (Hetsched__V1__Field) i;
		changes[i].value = (char *) values[i % (sizeof(values) / sizeof(values[0]))];
		list[i] = &changes[i];
	}
	submit.verdict = HETSCHED__V1__VERDICT__REWRITTEN;
	submit.user_message = "one slice";
	submit.changes = list;
	submit.n_changes = 18;
	submit.drop_environment = drop;
	submit.n_drop_environment = 2;
	reply.version = WIRE_VERSION;
	reply.what_case = HETSCHED__V1__HOOK_REPLY__WHAT_SUBMIT;
	reply.submit = &submit;
	if (hetsched__v1__hook_reply__get_packed_size(&reply) > room)
		return 0;
	return hetsched__v1__hook_reply__pack(&reply, bytes);
}
