/*
 * check_plugin.c - the plugin against a scripted daemon, without slurmctld
 *
 * check_plugin --list names the cases; check_plugin CASE... runs them (all without an argument) in the present
 * folder, where it makes its socket and files. The plugin's source is included, to reach what it hides.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "job_submit_hetsched.c"

#include <arpa/inet.h>
#include <sys/stat.h>

#include "server.h"
#include "stand_ins.h"

#define SOCKET "check.sock"
#define USER 1000
#define LENGTH_OF(array) (sizeof(array) / sizeof((array)[0]))

typedef Hetsched__V1__SubmitRequest SubmitRequest;

static int failures;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
			failures++; \
		} \
	} while (0)

static bool same(const char *text, const char *expected)
{
	if (!text || !expected)
		return text == expected;
	if (strcmp(text, expected))
		fprintf(stderr, "got      %s\nexpected %s\n", text, expected);
	return !strcmp(text, expected);
}

/* ---- what the daemon may answer ---- */

struct answer {
	HookReply reply;
	Hetsched__V1__SubmitReply submit;
	Hetsched__V1__ModifyReply modify;
	Change changes[32];
	Change *change_list[32];
};

static HookReply *submit_answer(struct answer *answer, Hetsched__V1__Verdict verdict, char *message)
{
	hetsched__v1__hook_reply__init(&answer->reply);
	hetsched__v1__submit_reply__init(&answer->submit);
	answer->reply.version = WIRE_VERSION;
	answer->reply.what_case = HETSCHED__V1__HOOK_REPLY__WHAT_SUBMIT;
	answer->reply.submit = &answer->submit;
	answer->submit.verdict = verdict;
	answer->submit.user_message = message;
	answer->submit.changes = answer->change_list;
	return &answer->reply;
}

static HookReply *modify_answer(struct answer *answer, Hetsched__V1__Verdict verdict, char *message)
{
	hetsched__v1__hook_reply__init(&answer->reply);
	hetsched__v1__modify_reply__init(&answer->modify);
	answer->reply.version = WIRE_VERSION;
	answer->reply.what_case = HETSCHED__V1__HOOK_REPLY__WHAT_MODIFY;
	answer->reply.modify = &answer->modify;
	answer->modify.verdict = verdict;
	answer->modify.user_message = message;
	return &answer->reply;
}

static void add_change(struct answer *answer, int field, char *value)
{
	size_t n = answer->submit.n_changes++;
	hetsched__v1__change__init(&answer->changes[n]);
	answer->changes[n].field = (Hetsched__V1__Field) field;
	answer->changes[n].value = value;
	answer->change_list[n] = &answer->changes[n];
}

/* ---- asking as slurmctld does ---- */

static char *message;

static int submit(job_desc_msg_t *job)
{
	slurm_xfree((void **) &message);
	return job_submit(job, USER, &message);
}

static int modify(job_desc_msg_t *job, uint32_t uid)
{
	slurm_xfree((void **) &message);
	return guard_modify(job, uid, &message);
}

static job_desc_msg_t *gpu_job(const char *tres_per_node)
{
	job_desc_msg_t *job = job_new();
	job_set(&job->tres_per_node, tres_per_node);
	return job;
}

/* A job with an ordinary request must pass, one with a slice must be told: both without a usable answer. */
static void check_fails_open(const char *what)
{
	job_desc_msg_t *plain = gpu_job("gres/gpu:a100:2");
	job_desc_msg_t *slice = gpu_job("gres/gpu:a100_1g.10gb:1");

	if (submit(plain) != SLURM_SUCCESS || !same(plain->tres_per_node, "gres/gpu:a100:2") || message) {
		fprintf(stderr, "%s: an ordinary job did not pass\n", what);
		failures++;
	}
	if (submit(slice) != ESLURM_INVALID_GRES || !message || !strstr(message, "the GPU slice a100_1g.10gb cannot")) {
		fprintf(stderr, "%s: a slice was not told (%s)\n", what, message ? message : "no message");
		failures++;
	}
	CHECK(same(slice->tres_per_node, "gres/gpu:a100_1g.10gb:1"));
	job_free(plain);
	job_free(slice);
}

/* ---- cases ---- */

static void passes_jobs_without_gpus(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = job_new();

	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "no"));
	job_set(&job->script, "#!/bin/sh\n#SBATCH -n1\nhostname\n#HETSCHED min-vram=40G\n");
	job_set(&job->tres_per_node, "gres/license:2");
	job_set(&job->comment, "an ordinary comment");
	CHECK(submit(job) == SLURM_SUCCESS && !message);
	CHECK(server_calls() == 0);
	server_stop();
	job_free(job);
}

static void rewrites(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = gpu_job("gres/gpu:1g.10gb:1");
	char *drop[] = {"SLURM_GPUS", "SLURM_TRES_BIND", "PATH_", "", "NOT_THERE"};

	submit_answer(&answer, HETSCHED__V1__VERDICT__REWRITTEN, "1 slice 1g.10gb");
	add_change(&answer, HETSCHED__V1__FIELD__TRES_PER_NODE, "gres/shard:4");
	add_change(&answer, HETSCHED__V1__FIELD__TRES_PER_JOB, "");
	add_change(&answer, HETSCHED__V1__FIELD__FEATURES, "(a100|h100)&big");
	add_change(&answer, HETSCHED__V1__FIELD__ADMIN_COMMENT, "hetsched:d=7");
	add_change(&answer, HETSCHED__V1__FIELD__NTASKS_PER_TRES, "");
	add_change(&answer, HETSCHED__V1__FIELD__MIN_NODES, "1");
	add_change(&answer, HETSCHED__V1__FIELD__MAX_NODES, "2");
	add_change(&answer, HETSCHED__V1__FIELD__REQUEUE, "1");
	add_change(&answer, HETSCHED__V1__FIELD__MIN_CPUS, "8");
	add_change(&answer, HETSCHED__V1__FIELD__MEMORY_PER_NODE_MIB, "131072");
	add_change(&answer, 99, "of a later daemon");
	answer.submit.drop_environment = drop;
	answer.submit.n_drop_environment = LENGTH_OF(drop);
	server_start_reply(SOCKET, &answer.reply);

	job_set(&job->tres_per_job, "gres/gpu:1");
	job_set(&job->features, "big");
	job->ntasks_per_tres = 2;
	for (const char *const *v = (const char *const[]) {"PATH=/bin", "SLURM_GPUS=1", "SLURM_GPUS_PER_NODE=1g.10gb:1",
							   "SLURM_TRES_BIND=x", "HOME=/", NULL}; *v; v++)
		job_add_environment(job, *v);
	CHECK(submit(job) == SLURM_SUCCESS);
	CHECK(same(message, "1 slice 1g.10gb"));
	CHECK(same(job->tres_per_node, "gres/shard:4") && same(job->features, "(a100|h100)&big"));
	CHECK(!job->tres_per_job && same(job->admin_comment, "hetsched:d=7"));
	CHECK(job->ntasks_per_tres == NO_VAL16 && job->min_nodes == 1 && job->max_nodes == 2 && job->requeue == 1);
	CHECK(job->min_cpus == 8 && job->pn_min_memory == 131072);
	CHECK(job->env_size == 3 && !job->environment[3]);
	CHECK(same(job->environment[0], "PATH=/bin") && same(job->environment[1], "SLURM_GPUS_PER_NODE=1g.10gb:1"));
	CHECK(same(job->environment[2], "HOME=/"));

	const SubmitRequest *sent = server_request()->submit;
	CHECK(sent && sent->uid == USER && same(sent->tres_per_node, "gres/gpu:1g.10gb:1"));
	CHECK(sent && sent->n_gpu_environment == 3 && same(sent->gpu_environment[0], "SLURM_GPUS=1"));
	CHECK(sent && sent->ntasks_per_tres == 2 && sent->min_nodes == 0 && !sent->batch && !sent->het_job);
	server_stop();
	job_free(job);
}

static void drops_all_of_an_environment(void)
{
	job_desc_msg_t *job = job_new();

	drop_variable(job, "SLURM_GPUS"); /* none at all */
	CHECK(!job->environment && job->env_size == 0);
	job_add_environment(job, "SLURM_GPUS=1");
	job_add_environment(job, "SLURM_GPUS=2");
	job_add_environment(job, "SLURM_GPUS");
	drop_variable(job, "SLURM_GPUS");
	CHECK(job->env_size == 1 && same(job->environment[0], "SLURM_GPUS") && !job->environment[1]);
	job_free(job);
}

static void unchanged_leaves_only_its_mark(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = gpu_job("gres/gpu:1");

	submit_answer(&answer, HETSCHED__V1__VERDICT__UNCHANGED, "");
	add_change(&answer, HETSCHED__V1__FIELD__TRES_PER_NODE, "gres/shard:4");
	add_change(&answer, HETSCHED__V1__FIELD__ADMIN_COMMENT, "hetsched:d=8");
	server_start_reply(SOCKET, &answer.reply);
	CHECK(submit(job) == SLURM_SUCCESS && !message);
	CHECK(same(job->tres_per_node, "gres/gpu:1") && same(job->admin_comment, "hetsched:d=8"));
	server_stop();
	job_free(job);
}

static void refuses(void)
{
	struct answer answer = {0};
	char long_message[3 * MESSAGE_BYTES_MAX];
	job_desc_msg_t *job = gpu_job("gres/gpu:a10O:1");

	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "no a10O here;\x1b[2J\ntry a100"));
	CHECK(submit(job) == ESLURM_INVALID_GRES && same(message, "no a10O here; [2J\ntry a100"));
	server_stop();
	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, ""));
	CHECK(submit(job) == ESLURM_INVALID_GRES && same(message, "hetsched refused this request"));
	server_stop();
	memset(long_message, 'x', sizeof(long_message) - 1);
	long_message[sizeof(long_message) - 1] = '\0';
	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, long_message));
	CHECK(submit(job) == ESLURM_INVALID_GRES && strlen(message) == MESSAGE_BYTES_MAX - 1);
	server_stop();
	job_free(job);
}

static void keeps_what_another_plugin_said(void)
{
	char *spoken = slurm_xstrdup("site: your account ends soon");

	tell(&spoken, "%s", "hetsched: rewritten");
	CHECK(same(spoken, "site: your account ends soon\nhetsched: rewritten"));
	slurm_xfree((void **) &spoken);
	tell(NULL, "%s", "a caller that takes no message");
}

static void applies_nothing_of_a_spoiled_reply(void)
{
	char long_value[VALUE_BYTES_MAX + 2];
	struct { int field; char *value; } spoiled[] = {
		{HETSCHED__V1__FIELD__FEATURES, long_value}, {HETSCHED__V1__FIELD__FEATURES, "a100\nb"},
		{HETSCHED__V1__FIELD__MIN_NODES, "-1"}, {HETSCHED__V1__FIELD__MIN_NODES, "4294967294"},
		{HETSCHED__V1__FIELD__MIN_NODES, "1x"}, {HETSCHED__V1__FIELD__MIN_CPUS, "99999999999999999999999"},
		{HETSCHED__V1__FIELD__REQUEUE, "2"}, {HETSCHED__V1__FIELD__NTASKS_PER_TRES, "65534"},
		{HETSCHED__V1__FIELD__MEMORY_PER_NODE_MIB, "9223372036854775808"}, {99, "a\tb"},
	};
	memset(long_value, 'x', sizeof(long_value) - 1);
	long_value[sizeof(long_value) - 1] = '\0';
	settings.misses = 1;
	for (size_t i = 0; i < LENGTH_OF(spoiled); i++) {
		struct answer answer = {0};
		job_desc_msg_t *job = gpu_job("gres/gpu:1");
		submit_answer(&answer, HETSCHED__V1__VERDICT__REWRITTEN, "done");
		add_change(&answer, HETSCHED__V1__FIELD__TRES_PER_NODE, "gres/shard:4");
		add_change(&answer, spoiled[i].field, spoiled[i].value);
		server_start_reply(SOCKET, &answer.reply);
		CHECK(submit(job) == SLURM_SUCCESS && !message && same(job->tres_per_node, "gres/gpu:1"));
		CHECK(job->min_nodes == NO_VAL && !job->features && !misses_in_a_row && server_calls() == 1);
		server_stop();
		job_free(job);
	}
}

static void frame(uint8_t *to, uint32_t size)
{
	size = htonl(size);
	memcpy(to, &size, 4);
}

static void survives_what_is_no_reply(void)
{
	uint8_t bytes[8192];
	struct answer answer = {0};
	size_t size = hetsched__v1__hook_reply__get_packed_size(
		submit_answer(&answer, HETSCHED__V1__VERDICT__REWRITTEN, "abcdefgh"));

	settings.misses = 1000;
	memset(bytes, 0, sizeof(bytes));
	server_start(SOCKET, CLOSE, NULL, 0, geteuid());
	check_fails_open("closed at once");
	server_stop();
	server_start(SOCKET, SEND, bytes, 0, geteuid());
	check_fails_open("closed without a byte");
	server_stop();
	server_start(SOCKET, SEND, bytes, 3, geteuid());
	check_fails_open("half a header");
	server_stop();
	server_start(SOCKET, SEND, bytes, 4, geteuid());
	check_fails_open("empty message");
	server_stop();
	frame(bytes, 65537);
	misses_in_a_row = 0;
	server_start(SOCKET, SEND, bytes, sizeof(bytes), geteuid());
	check_fails_open("too long");
	CHECK(misses_in_a_row == 0); /* what cannot be read was answered all the same */
	server_stop();
	memset(bytes, 0xff, sizeof(bytes));
	server_start(SOCKET, SEND, bytes, sizeof(bytes), geteuid());
	check_fails_open("a length of 4 GiB");
	server_stop();
	frame(bytes, 500);
	server_start(SOCKET, SEND, bytes, 504, geteuid());
	check_fails_open("garbage");
	server_stop();
	frame(bytes, (uint32_t) size);
	hetsched__v1__hook_reply__pack(&answer.reply, bytes + 4);
	for (size_t cut = 0; cut < size; cut++) {
		frame(bytes, (uint32_t) size);
		server_start(SOCKET, SEND, bytes, 4 + cut, geteuid());
		check_fails_open("truncated");
		server_stop();
		if (!cut)
			continue;
		frame(bytes, (uint32_t) cut);
		server_start(SOCKET, SEND, bytes, 4 + cut, geteuid());
		check_fails_open("a shorter message");
		server_stop();
	}
	bytes[4 + size - 3] = '\0';
	frame(bytes, (uint32_t) size);
	server_start(SOCKET, SEND, bytes, 4 + size, geteuid());
	check_fails_open("a NUL inside a string");
	server_stop();
	answer.reply.version = 2;
	server_start_reply(SOCKET, &answer.reply);
	check_fails_open("another version");
	server_stop();
	server_start_reply(SOCKET, modify_answer(&answer, HETSCHED__V1__VERDICT__UNCHANGED, ""));
	check_fails_open("the answer to another question");
	server_stop();
	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__VERDICT_UNSPECIFIED, ""));
	check_fails_open("no verdict");
	server_stop();
	CHECK(strstr(log_text(), "the answer cannot be read") && strstr(log_text(), "the connection ended half-way"));
}

static void gives_up_at_the_deadline(void)
{
	struct answer answer = {0};
	uint8_t bytes[1024];
	submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "this takes a byte each 20 ms");
	frame(bytes, (uint32_t) hetsched__v1__hook_reply__pack(&answer.reply, bytes + 4));

	settings.misses = 1000;
	server_start(SOCKET, SILENT, NULL, 0, geteuid());
	check_fails_open("silent");
	CHECK(server_calls() == 2);
	server_stop();
	server_start(SOCKET, DEAF, NULL, 0, geteuid());
	for (int i = 0; i < 3; i++) /* at first the backlog takes the caller, then it is full */
		check_fails_open("stopped");
	server_stop();
	server_start(SOCKET, DRIP, bytes, sizeof(bytes), geteuid());
	check_fails_open("drips");
	server_stop();
	CHECK(misses_in_a_row == 10 && strstr(log_text(), "no answer within the deadline"));
}

/* A connection is kept for the next question, and whatever befalls it in between costs no answer. */
static void keeps_its_connection(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = gpu_job("gres/gpu:1");
	const HookReply *reply = submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "no");

	const struct {
		enum manner manner;
		int calls, connections;
	} expected[] = {
		{KEEP, 4, 1}, {SEND, 4, 4}, {BABBLE, 4, 4},
		{CUT, 7, 4}, /* each question but the first is put to the end of a connection, then to a new one */
	};
	for (size_t i = 0; i < LENGTH_OF(expected); i++) {
		server_start_saying(SOCKET, expected[i].manner, reply);
		for (int n = 0; n < 4; n++)
			CHECK(submit(job) == ESLURM_INVALID_GRES && same(message, "no"));
		CHECK(server_calls() == expected[i].calls && server_connections() == expected[i].connections);
		server_stop(); /* the next one is a daemon started anew */
	}
	CHECK(misses_in_a_row == 0);
	CHECK(fini() == SLURM_SUCCESS && line.kept == -1);
	job_free(job);
}

/* Starts a daemon that refuses with "asked" and gives two spare refusals with it. */
static void start_with_spares(uint32_t spare_ms)
{
	struct answer answer = {0};
	Hetsched__V1__SubmitReply spares[2], *list[2] = {&spares[0], &spares[1]};

	submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "asked");
	for (size_t i = 0; i < 2; i++) {
		spares[i] = answer.submit;
		spares[i].user_message = i ? "spare 1" : "spare 2";
		spares[i].decision_id = i ? "d1" : "d2";
	}
	answer.reply.spare = list;
	answer.reply.n_spare = 2;
	answer.reply.spare_ms = spare_ms;
	server_start_saying(SOCKET, KEEP, &answer.reply);
}

static void says(job_desc_msg_t *job, const char *expected)
{
	CHECK(submit(job) == ESLURM_INVALID_GRES && same(message, expected));
}

static void spare_replies_are_used_once(void)
{
	job_desc_msg_t *job = gpu_job("gres/gpu:1"), *other = gpu_job("gres/gpu:2");

	start_with_spares(SPARE_MS_MAX);
	says(job, "asked");
	says(job, "spare 1");
	says(other, "asked"); /* another request has its own */
	says(job, "spare 2");
	says(job, "asked");
	CHECK(server_calls() == 3 && server_connections() == 1);
	CHECK(server_used() == 2); /* it was told of both with the last question */
	server_stop();
	job_free(job);
	job_free(other);
}

/* As many different requests as there are slots keep their spares, however the calls are mixed. */
static void spare_replies_do_not_push_each_other_out(void)
{
	job_desc_msg_t *jobs[SPARE_SLOTS];
	char text[32];

	start_with_spares(SPARE_MS_MAX);
	for (int i = 0; i < SPARE_SLOTS; i++) {
		snprintf(text, sizeof(text), "gres/gpu:%d", i + 1);
		jobs[i] = gpu_job(text);
	}
	submit(jobs[0]); /* out of step with the others */
	for (int n = 0; n < 9; n++)
		for (int i = 0; i < SPARE_SLOTS; i++)
			submit(jobs[i]);
	CHECK(server_calls() == 3 * SPARE_SLOTS + 1); /* one call in three */
	server_stop();
	for (int i = 0; i < SPARE_SLOTS; i++)
		job_free(jobs[i]);
}

static void spare_replies_do_not_last(void)
{
	job_desc_msg_t *job = gpu_job("gres/gpu:1");

	start_with_spares(1);
	says(job, "asked");
	usleep(5000);
	says(job, "asked"); /* their time was over */
	server_stop();
	start_with_spares(SPARE_MS_MAX);
	says(job, "asked");
	server_stop();
	start_with_spares(0);
	says(job, "asked"); /* the daemon that gave them had gone */
	says(job, "asked");
	CHECK(server_calls() == 2 && server_used() == 0);
	server_stop();
	job_free(job);
}

static void a_late_answer_is_not_the_next_one(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = gpu_job("gres/gpu:1");

	server_start_saying(SOCKET, KEEP, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, ""));
	CHECK(submit(job) == ESLURM_INVALID_GRES && line.kept >= 0);
	server_pause(true);
	CHECK(submit(job) == SLURM_SUCCESS && line.kept == -1 && misses_in_a_row == 1);
	server_pause(false);
	CHECK(submit(job) == ESLURM_INVALID_GRES && server_connections() == 2);
	server_stop();
	job_free(job);
}

static void stops_asking_after_misses(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = gpu_job("gres/gpu:1");

	settings.misses = 5;
	server_start(SOCKET, SILENT, NULL, 0, geteuid());
	for (int i = 0; i < 12; i++)
		CHECK(submit(job) == SLURM_SUCCESS);
	CHECK(server_calls() == 5 && silent_until_ms > wire_now_ms());
	CHECK(strstr(log_text(), "5 questions in a row without an answer"));
	silent_until_ms = 0; /* the silence is over: one try, and silence again */
	for (int i = 0; i < 4; i++)
		CHECK(submit(job) == SLURM_SUCCESS);
	CHECK(server_calls() == 6);
	server_stop();
	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "no"));
	CHECK(submit(job) == SLURM_SUCCESS && server_calls() == 0);
	silent_until_ms = 0;
	CHECK(submit(job) == ESLURM_INVALID_GRES && misses_in_a_row == 0);
	CHECK(strstr(log_text(), "the daemon answers again"));
	server_stop();
	job_free(job);
}

static void an_error_of_the_daemon_is_no_miss(void)
{
	HookReply reply = HETSCHED__V1__HOOK_REPLY__INIT;

	reply.version = WIRE_VERSION;
	reply.what_case = HETSCHED__V1__HOOK_REPLY__WHAT_ERROR;
	reply.error = "the store is locked";
	server_start_reply(SOCKET, &reply);
	check_fails_open("error");
	CHECK(misses_in_a_row == 0 && strstr(log_text(), "the store is locked"));
	server_stop();
}

static void believes_only_root_and_slurm_user(void)
{
	struct answer answer = {0};
	uint8_t bytes[1024];

	if (geteuid()) /* nobody else can be played; its opposite is what all other cases show */
		return;
	submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "I am not your daemon");
	frame(bytes, (uint32_t) hetsched__v1__hook_reply__pack(&answer.reply, bytes + 4));
	server_start(SOCKET, SEND, bytes, sizeof(bytes), 65534);
	check_fails_open("somebody else's socket");
	CHECK(server_calls() == 0 || !server_request()->submit);
	CHECK(strstr(log_text(), "neither root, nor SlurmUser"));
	server_stop();
	settings.daemon_uid = 65534;
	server_start(SOCKET, SEND, bytes, sizeof(bytes), 65534);
	job_desc_msg_t *job = gpu_job("gres/gpu:1");
	CHECK(submit(job) == ESLURM_INVALID_GRES && same(message, "I am not your daemon"));
	job_free(job);
	server_stop();
}

static void does_without_a_daemon(void)
{
	job_desc_msg_t *job = gpu_job("gres/gpu:1g.10gb:1");

	settings.misses = 1000;
	unlink(SOCKET);
	check_fails_open("no socket");
	settings.refuse_slices = false;
	CHECK(submit(job) == SLURM_SUCCESS && !message);
	settings.refuse_slices = true;
	fclose(fopen(settings.disabled_file, "w"));
	CHECK(submit(job) == SLURM_SUCCESS && !message);
	unlink(settings.disabled_file);
	CHECK(submit(job) == ESLURM_INVALID_GRES);
	job_free(job);
}

static void requirements_are_not_lost_in_silence(void)
{
	struct { const char *script, *comment; int rc; } jobs[] = {
		{"#!/bin/sh\n#HETSCHED min-vram=40G\n", NULL, ESLURM_INVALID_GRES},
		{NULL, "hetsched:types=a100", ESLURM_INVALID_GRES},
		{"#!/bin/sh\n#HETSCHED opt-out\n", NULL, SLURM_SUCCESS},
		{NULL, "hetsched:preemptible=yes", SLURM_SUCCESS},
		{NULL, "types=a100, but for somebody else", SLURM_SUCCESS},
	};
	settings.misses = 1000;
	unlink(SOCKET);
	for (size_t i = 0; i < LENGTH_OF(jobs); i++) {
		job_desc_msg_t *job = gpu_job("gres/gpu:1");
		job_set(&job->script, jobs[i].script);
		job_set(&job->comment, jobs[i].comment);
		CHECK(submit(job) == jobs[i].rc);
		job_free(job);
	}
}

static void finds_directives(void)
{
	struct packing packing;
	char script[100000] = "#!/bin/bash\r\n#HETSCHED min-vram=40G\r\n\n  # a comment\n#HETSCHEDX no\n #HETSCHED no\n"
			      "#HETSCHED\ttypes=a100\n#HETSCHED\n";
	size_t used = strlen(script);

	used += (size_t) sprintf(script + used, "#HETSCHED ");
	memset(script + used, 'y', 5000);
	sprintf(script + used + 5000, "\n#HETSCHED b\xff\nsrun x\n#HETSCHED slices=no\n");
	packing_init(&packing);
	pack_directives(&packing, script);
	CHECK(packing.submit.n_script_lines == 4);
	CHECK(same(packing.directives[0], "min-vram=40G\r") && same(packing.directives[1], "types=a100"));
	CHECK(strlen(packing.directives[2]) == DIRECTIVE_BYTES_MAX && same(packing.directives[3], "b?"));
	packing_release(&packing);

	for (size_t at = 0; at < sizeof(script) - 14; at += 12)
		memcpy(script + at, "#HETSCHED z\n", 13);
	packing_init(&packing);
	pack_directives(&packing, script);
	CHECK(packing.submit.n_script_lines == DIRECTIVES_MAX);
	packing_release(&packing);

	packing_init(&packing);
	pack_directives(&packing, "#HETSCHED:slices=no\n#HETSCHED opt-out"); /* no newline at the end */
	CHECK(packing.submit.n_script_lines == 2 && same(packing.directives[0], "slices=no") &&
	      same(packing.directives[1], "opt-out"));
	packing_release(&packing);
}

static void knows_slices(void)
{
	struct { const char *tres, *slice; } lists[] = {
		{"gres/gpu:1g.10gb:1", "1g.10gb"}, {"gres/gpu:a100_3g.40gb=2", "a100_3g.40gb"},
		{"gres/gpu:2,gres/gpu:1G.10GB+me:1", "1G.10GB+me"}, {"gpu:20gb", "20gb"}, {"gres/gpu:20GB:1", "20GB"},
		{"gres/gpu:nvidia_a100_80gb_pcie_1g.10gb:1", "nvidia_a100_80gb_pcie_1g.10gb"},
		{"gres/gpu:a100_80gb:1", NULL}, {"gres/gpu:4", NULL}, {"gres/bandwidth:20gb", NULL}, {"", NULL},
		{"gres/gpu:1g.gb:1", NULL}, {"::::,,,,", NULL}, {NULL, NULL}, {"gres/gpu:h100:2(S:0-1)", NULL},
	};
	for (size_t i = 0; i < LENGTH_OF(lists); i++) {
		char slice[SLICE_BYTES_MAX];
		job_desc_msg_t *job = gpu_job(lists[i].tres);
		CHECK(job_names_slice(job, slice) == !!lists[i].slice);
		CHECK(!lists[i].slice || same(slice, lists[i].slice));
		job_free(job);
	}
}

static void tells_the_daemon_what_it_needs(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = job_new();

	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__UNCHANGED, ""));
	job_set(&job->tres_per_task, "gres/gpu=1");
	job_set(&job->name, "gr\xc3\xb6\xc3\x9f" "e");
	job_set(&job->comment, "Latin-1: \xe9");
	job_set(&job->script, "#!/bin/sh\n#HETSCHED min-cc=8.0\n");
	job->het_job_offset = 1;
	job->shared = JOB_SHARED_NONE;
	job->pn_min_memory = 4096 | MEM_PER_CPU;
	job->time_limit = INFINITE;
	job->alloc_sid = NO_VAL;
	CHECK(submit(job) == SLURM_SUCCESS);
	const SubmitRequest *sent = server_request()->submit;
	CHECK(same(sent->job_name, "gr\xc3\xb6\xc3\x9f" "e") && same(sent->comment, "Latin-1: ?"));
	CHECK(sent->n_script_lines == 1 && same(sent->script_lines[0], "min-cc=8.0") && sent->batch);
	CHECK(sent->het_job && sent->het_job_offset == 1 && sent->exclusive && sent->test_only);
	CHECK(sent->memory_per_node_mib == 0 && sent->time_limit_min == 0 && sent->num_tasks == 0);
	server_stop();
	job_free(job);
}

static void a_request_too_long_is_not_sent(void)
{
	struct answer answer = {0};
	char comment[70000];
	job_desc_msg_t *job = gpu_job("gres/gpu:1");

	memset(comment, 'c', sizeof(comment) - 1);
	comment[sizeof(comment) - 1] = '\0';
	job_set(&job->comment, comment);
	server_start_reply(SOCKET, submit_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "no"));
	CHECK(submit(job) == SLURM_SUCCESS && !message && misses_in_a_row == 0);
	server_stop();
	job_free(job);
}

static void vetoes_changes(void)
{
	struct answer answer = {0};
	job_desc_msg_t *job = job_new();

	server_start_reply(SOCKET, modify_answer(&answer, HETSCHED__V1__VERDICT__REFUSED, "not yours to enlarge"));
	job_set_id(job, 42);
	job_set(&job->comment, "only a comment");
	CHECK(modify(job, USER) == SLURM_SUCCESS && server_calls() == 0);
	job_set(&job->tres_per_node, "gres/shard:31");
	CHECK(modify(job, 0) == SLURM_SUCCESS && modify(job, geteuid()) == SLURM_SUCCESS && server_calls() == 0);
	CHECK(modify(job, USER) == ESLURM_ACCESS_DENIED && same(message, "not yours to enlarge"));
	const Hetsched__V1__ModifyRequest *sent = server_request()->modify;
	CHECK(sent && same(sent->job_id, "42") && sent->uid == USER && sent->n_touched == 1);
	CHECK(sent && sent->touched[0] == HETSCHED__V1__FIELD__TRES_PER_NODE);
	CHECK(sent && same(sent->fields->tres_per_node, "gres/shard:31"));
	job_set(&job->job_id_str, "42_[3-5]");
	job_set(&job->features, "");
	CHECK(modify(job, USER) == ESLURM_ACCESS_DENIED);
	sent = server_request()->modify;
	CHECK(sent && same(sent->job_id, "42_[3-5]") && sent->n_touched == 2);
	server_stop();
	server_start_reply(SOCKET, modify_answer(&answer, HETSCHED__V1__VERDICT__UNCHANGED, ""));
	CHECK(modify(job, USER) == SLURM_SUCCESS && !message);
	server_stop();
	job_free(job);
}

static void vetoes_what_it_must_without_a_daemon(void)
{
	struct { const char *tres, *features; int rc; } changes[] = {
		{"gres/shard:31", NULL, ESLURM_ACCESS_DENIED}, {"gres/gpu:7g.80gb:1", NULL, ESLURM_ACCESS_DENIED},
		{"gres/gpu:2", NULL, SLURM_SUCCESS}, {NULL, "h100", SLURM_SUCCESS},
	};
	settings.misses = 1000;
	unlink(SOCKET);
	for (size_t i = 0; i < LENGTH_OF(changes); i++) {
		job_desc_msg_t *job = gpu_job(changes[i].tres);
		job_set(&job->features, changes[i].features);
		CHECK(modify(job, USER) == changes[i].rc && !!message == !!changes[i].rc);
		job_free(job);
	}
}

static void reads_settings(void)
{
	char problem[100];
	struct hook_settings read;
	FILE *file = fopen("check.conf", "w");

	fputs("# comment\n\n socket = /tmp/x.sock # here\ndeadline_ms=50\nslice_when_down=pass\nmisses=3\n"
	      "silence_s=0\ndisabled_file=/tmp/off\ndaemon_user=root\n", file);
	fclose(file);
	CHECK(settings_read("check.conf", &read, problem, sizeof(problem)) == 0);
	CHECK(same(read.socket, "/tmp/x.sock") && read.deadline_ms == 50 && !read.refuse_slices);
	CHECK(read.misses == 3 && read.silence_s == 0 && same(read.disabled_file, "/tmp/off") && read.daemon_uid == 0);

	const char *bad[] = {"deadline_ms=0", "deadline_ms=6000", "deadline_ms=1s", "socket=relative", "nonsense",
			     "unknown=1", "slice_when_down=maybe", "misses=", "=1",
			     "daemon_user=nobody of this name"};
	for (size_t i = 0; i < LENGTH_OF(bad); i++) {
		file = fopen("check.conf", "w");
		fprintf(file, "misses=7\n%s\nsilence_s=11\n", bad[i]);
		fclose(file);
		CHECK(settings_read("check.conf", &read, problem, sizeof(problem)) == 2);
		CHECK(read.misses == 7 && read.silence_s == 11 && read.deadline_ms == 100 && *problem);
	}
	unlink("check.conf");
	CHECK(settings_read("check.conf", &read, problem, sizeof(problem)) == 0 && read.deadline_ms == 100);
}

#define CASE(function) {#function, function}
static const struct {
	const char *name;
	void (*run)(void);
} CASES[] = {
	CASE(passes_jobs_without_gpus), CASE(rewrites), CASE(drops_all_of_an_environment),
	CASE(unchanged_leaves_only_its_mark), CASE(refuses), CASE(keeps_what_another_plugin_said),
	CASE(applies_nothing_of_a_spoiled_reply), CASE(survives_what_is_no_reply), CASE(gives_up_at_the_deadline),
	CASE(keeps_its_connection), CASE(spare_replies_are_used_once), CASE(spare_replies_do_not_last),
	CASE(spare_replies_do_not_push_each_other_out),
	CASE(a_late_answer_is_not_the_next_one), CASE(stops_asking_after_misses),
	CASE(an_error_of_the_daemon_is_no_miss), CASE(believes_only_root_and_slurm_user), CASE(does_without_a_daemon),
	CASE(requirements_are_not_lost_in_silence), CASE(finds_directives), CASE(knows_slices),
	CASE(tells_the_daemon_what_it_needs), CASE(a_request_too_long_is_not_sent), CASE(vetoes_changes),
	CASE(vetoes_what_it_must_without_a_daemon), CASE(reads_settings),
};

/* The plugin as slurmctld has just loaded it, looking at our socket. */
static void set_up(void)
{
	log_clear();
	CHECK(fini() == SLURM_SUCCESS);
	CHECK(init() == SLURM_SUCCESS);
	snprintf(settings.socket, sizeof(settings.socket), "%s", SOCKET);
	snprintf(settings.disabled_file, sizeof(settings.disabled_file), "%s", "check.disabled");
}

int main(int argc, char **argv)
{
	int ran = 0;

	for (size_t i = 0; i < LENGTH_OF(CASES); i++) {
		bool wanted = argc < 2;
		for (int a = 1; a < argc; a++)
			wanted |= !strcmp(argv[a], CASES[i].name);
		if (argc == 2 && !strcmp(argv[1], "--list"))
			puts(CASES[i].name);
		if (!wanted)
			continue;
		set_up();
		CASES[i].run();
		slurm_xfree((void **) &message);
		ran++;
	}
	unlink(SOCKET);
	fini();
	if (argc == 2 && !strcmp(argv[1], "--list"))
		return EXIT_SUCCESS;
	printf("%d cases, %d failures\n", ran, failures);
	return failures || !ran ? EXIT_FAILURE : EXIT_SUCCESS;
}
