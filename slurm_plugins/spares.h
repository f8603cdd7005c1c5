/*
 * spares.h - replies that the daemon gave ahead, in a burst of the same submit
 *
 * A round trip to the daemon costs a submit a tenth of a millisecond, most of it to wake two processes. When the
 * same request comes again and again, a reply brings those to the next ones with it. Each is used once, at once
 * or not at all. No lock: a thread that finds another one here asks the daemon instead.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef HETSCHED_SPARES_H
#define HETSCHED_SPARES_H

#include "wire.h"

#define SPARE_SLOTS 8		    /* different requests at a time */
#define SPARES_MAX 16		    /* replies to each */
#define SPARE_MS_MAX 1000	    /* however long the daemon may say */
#define SPARE_REQUEST_BYTES_MAX 4096 /* a longer request has none */
#define SPARE_ID_BYTES 40
#define SPARES_USED_MAX 64

/* The ids of decisions in spares that were used, as a message for the daemon. */
struct spares_used {
	Hetsched__V1__HookRequest request;
	Hetsched__V1__UsedRequest used;
	char *list[SPARES_USED_MAX];
	char ids[SPARES_USED_MAX][SPARE_ID_BYTES];
};

/* Takes the spares of `reply` out of it, to be given to the next requests like this one. */
void spares_keep(const Hetsched__V1__HookRequest *request, Hetsched__V1__HookReply *reply);

/* A spare reply to this very request, to be freed as any reply; NULL if there is none. */
Hetsched__V1__HookReply *spares_take(const Hetsched__V1__HookRequest *request);

/* Moves what the daemon has not been told yet to `used`; NULL if there is nothing, else &used->request. */
const Hetsched__V1__HookRequest *spares_used(struct spares_used *used);

/* Forgets all replies. */
void spares_clear(void);

#endif
