/*
 * spares.c - see spares.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "spares.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct slot {
	uint8_t *request; /* NULL: empty */
	size_t size;
	Hetsched__V1__SubmitReply **replies;
	size_t count;
	int64_t until_ms;
};

static struct slot slots[SPARE_SLOTS];
static char used_ids[SPARES_USED_MAX][SPARE_ID_BYTES];
static size_t used_count;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void empty(struct slot *slot)
{
	for (size_t i = 0; i < slot->count; i++)
		hetsched__v1__submit_reply__free_unpacked(slot->replies[i], NULL);
	free(slot->replies);
	free(slot->request);
	*slot = (struct slot) {0};
}

static struct slot *find(const uint8_t *request, size_t size)
{
	for (size_t i = 0; i < SPARE_SLOTS; i++)
		if (slots[i].request && slots[i].size == size && !memcmp(slots[i].request, request, size))
			return &slots[i];
	return NULL;
}

/* The slot to be used next: an empty one, for those end at 0, or the one that ends first. */
static struct slot *oldest(void)
{
	struct slot *found = &slots[0];

	for (size_t i = 1; i < SPARE_SLOTS; i++)
		if (slots[i].until_ms < found->until_ms)
			found = &slots[i];
	return found;
}

/* The request as it goes over the wire, in `bytes`; 0 if it is too long to be remembered. */
static size_t pack(const Hetsched__V1__HookRequest *request, uint8_t bytes[SPARE_REQUEST_BYTES_MAX])
{
	if (hetsched__v1__hook_request__get_packed_size(request) > SPARE_REQUEST_BYTES_MAX)
		return 0;
	return hetsched__v1__hook_request__pack(request, bytes);
}

static void fill(const uint8_t *request, size_t size, Hetsched__V1__HookReply *reply)
{
	struct slot *slot = find(request, size);

	if (!slot)
		slot = oldest();
	empty(slot);
	slot->request = malloc(size);
	if (!slot->request)
		return;
	memcpy(slot->request, request, size);
	slot->size = size;
	slot->replies = reply->spare; /* protobuf-c made them with malloc, and is told to free them the same way */
	slot->count = reply->n_spare;
	slot->until_ms = wire_now_ms() + (reply->spare_ms < SPARE_MS_MAX ? reply->spare_ms : SPARE_MS_MAX);
	reply->spare = NULL;
	reply->n_spare = 0;
}

void spares_keep(const Hetsched__V1__HookRequest *request, Hetsched__V1__HookReply *reply)
{
	uint8_t bytes[SPARE_REQUEST_BYTES_MAX];
	size_t size = pack(request, bytes);

	if (!size || !reply->n_spare || reply->n_spare > SPARES_MAX || atomic_flag_test_and_set(&busy))
		return;
	fill(bytes, size, reply);
	atomic_flag_clear(&busy);
}

static Hetsched__V1__HookReply *wrap(Hetsched__V1__SubmitReply *submit)
{
	Hetsched__V1__HookReply *reply = malloc(sizeof(*reply));

	if (!reply) {
		hetsched__v1__submit_reply__free_unpacked(submit, NULL);
		return NULL;
	}
	hetsched__v1__hook_reply__init(reply);
	reply->version = WIRE_VERSION;
	reply->what_case = HETSCHED__V1__HOOK_REPLY__WHAT_SUBMIT;
	reply->submit = submit;
	return reply;
}

/* The last reply of a slot, noted as used; NULL if there is none, or nothing more can be noted. */
static Hetsched__V1__SubmitReply *take(struct slot *slot)
{
	if (!slot->count || used_count == SPARES_USED_MAX)
		return NULL;
	const char *id = slot->replies[slot->count - 1]->decision_id;
	if (strlen(id) >= SPARE_ID_BYTES)
		return NULL;
	strcpy(used_ids[used_count++], id);
	return slot->replies[--slot->count];
}

Hetsched__V1__HookReply *spares_take(const Hetsched__V1__HookRequest *request)
{
	uint8_t bytes[SPARE_REQUEST_BYTES_MAX];
	size_t size = pack(request, bytes);
	Hetsched__V1__SubmitReply *taken = NULL;

	if (!size || atomic_flag_test_and_set(&busy))
		return NULL;
	struct slot *slot = find(bytes, size);
	if (slot && wire_now_ms() < slot->until_ms)
		taken = take(slot);
	atomic_flag_clear(&busy);
	return taken ? wrap(taken) : NULL;
}

const Hetsched__V1__HookRequest *spares_used(struct spares_used *used)
{
	hetsched__v1__hook_request__init(&used->request);
	hetsched__v1__used_request__init(&used->used);
	if (atomic_flag_test_and_set(&busy))
		return NULL;
	for (size_t i = 0; i < used_count; i++)
		used->list[i] = memcpy(used->ids[i], used_ids[i], SPARE_ID_BYTES);
	used->used.n_decision_ids = used_count;
	used_count = 0;
	atomic_flag_clear(&busy);
	used->used.decision_ids = used->list;
	used->request.version = WIRE_VERSION;
	used->request.what_case = HETSCHED__V1__HOOK_REQUEST__WHAT_USED;
	used->request.used = &used->used;
	return used->used.n_decision_ids ? &used->request : NULL;
}

void spares_clear(void)
{
	if (atomic_flag_test_and_set(&busy))
		return;
	for (size_t i = 0; i < SPARE_SLOTS; i++)
		empty(&slots[i]);
	atomic_flag_clear(&busy);
}
