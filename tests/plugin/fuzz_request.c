/*
 * fuzz_request.c - any bytes as what a user submits: script, TRES lists, comment, environment
 *
 * Whatever comes: no memory error, no leak, and a request that can be packed, whose strings are UTF-8 and whose
 * lines keep their bounds. Driven like fuzz_reply.c. The input is cut at its 0xfe bytes into the fields.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "request.c"

#include "fuzz.h"
#include "stand_ins.h"

#define FIELD_COUNT 8

static void must(bool fine, const char *what)
{
	if (fine)
		return;
	fprintf(stderr, "broken promise: %s\n", what);
	abort();
}

static void fill(job_desc_msg_t *job, char *const *fields)
{
	job_set(&job->script, fields[0]);
	job_set(&job->tres_per_node, fields[1]);
	job_set(&job->tres_per_task, fields[2]);
	job_set(&job->comment, fields[3]);
	job_set(&job->name, fields[4]);
	job_set(&job->job_id_str, fields[5]);
	for (int i = 6; i < FIELD_COUNT; i++)
		if (fields[i])
			job_add_environment(job, fields[i]);
}

static void check_packing(const struct packing *packing)
{
	size_t size = hetsched__v1__hook_request__get_packed_size(&packing->request);
	uint8_t *bytes = malloc(size + 1);

	must(hetsched__v1__hook_request__pack(&packing->request, bytes) == size, "a size known before");
	free(bytes);
	must(is_utf8(packing->submit.comment) && is_utf8(packing->submit.job_name), "UTF-8");
	must(packing->submit.n_script_lines <= DIRECTIVES_MAX, "a bounded number of lines");
	for (size_t i = 0; i < packing->submit.n_script_lines; i++)
		must(strlen(packing->submit.script_lines[i]) <= DIRECTIVE_BYTES_MAX, "a bounded line");
}

static void pack_and_check(job_desc_msg_t *job)
{
	struct packing packing;
	char slice[SLICE_BYTES_MAX];

	packing_init(&packing);
	pack_directives(&packing, job->script);
	concerns_gpus(job, &packing);
	has_requirement(job, &packing);
	if (job_names_slice(job, slice))
		must(*slice && strlen(slice) < sizeof(slice), "a bounded name");
	pack_submit(&packing, job, 1000);
	check_packing(&packing);
	packing_release(&packing);
	packing_init(&packing);
	if (pack_modify(&packing, job, 1000))
		check_packing(&packing);
	packing_release(&packing);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *text = calloc(1, size + 1), *fields[FIELD_COUNT] = {NULL};
	job_desc_msg_t *job = job_new();

	memcpy(text, bytes, size);
	char *at = text;
	for (int i = 0; i < FIELD_COUNT && at < text + size; i++) {
		fields[i] = at;
		char *end = memchr(at, 0xfe, (size_t) (text + size - at));
		if (end)
			*end = '\0';
		at = end ? end + 1 : text + size;
	}
	fill(job, fields);
	pack_and_check(job);
	job_free(job);
	free(text);
	return 0;
}

size_t fuzz_seed(uint8_t *bytes, size_t room)
{
	return (size_t) snprintf((char *) bytes, room,
				 "#!/bin/sh\n#HETSCHED min-vram=40G types=a100\n\n#HETSCHED opt-out\nsrun x\n\xfe"
				 "gres/gpu:a100_1g.10gb:1,gres/gpu:20gb\xfegres/gpu:1g.10gb=1\xfehetsched:min-cc=8.0"
				 "\xfegr\xc3\xb6\xc3\x9f" "e\xfe" "12_3\xfeSLURM_GPUS=1g.10gb:1\xfeSLURM_TRES_BIND=x");
}
