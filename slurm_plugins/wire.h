/*
 * wire.h - one question to hetschedd and its answer, within a deadline
 *
 * Messages and framing: proto/hetsched/v1/hook.proto. Nothing here blocks past the deadline or takes a lock;
 * it may be called from any thread.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef HETSCHED_WIRE_H
#define HETSCHED_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hetsched/v1/hook.pb-c.h"

#define WIRE_VERSION 1
#define WIRE_MESSAGE_MAX 65536

enum wire_result {
	WIRE_OK = 0,
	WIRE_ABSENT,	/* nobody listens on the socket */
	WIRE_UNTRUSTED, /* who listens is none of those who are believed */
	WIRE_LATE,	/* the deadline went by */
	WIRE_CUT,	/* the connection ended or failed half-way */
	WIRE_GARBAGE,	/* what came is no reply of this schema */
	WIRE_TOO_LONG,	/* the request does not fit a message; nothing was sent */
	WIRE_NO_MEMORY,
};

/* The result in words, for a log line. */
const char *wire_result_text(enum wire_result result);

/* Milliseconds of CLOCK_MONOTONIC. */
int64_t wire_now_ms(void);

/*
 * A connection kept from one question to the next, for connecting costs as much as the rest. Threads that ask at
 * the same time have connections of their own, of which the last is kept.
 */
struct wire_line {
	_Atomic int kept; /* -1: none */
};

#define WIRE_LINE_INIT {-1}

/* Closes the connection that is kept, if any. */
void wire_hang_up(struct wire_line *line);

/*
 * Sends `request` to the daemon that listens on `socket_path` and waits for its reply, all in `deadline_ms`.
 * `news` goes ahead of it and gets no reply; may be NULL. So may `line`: then nothing is kept. A daemon that was started anew since is asked again, once.
 * Only root, the user of this process and `daemon_uid` (-1: nobody else) are believed.
 * On WIRE_OK `*reply` is set, to be freed with hetsched__v1__hook_reply__free_unpacked(reply, NULL).
 */
enum wire_result wire_ask(struct wire_line *line, const char *socket_path, uid_t daemon_uid, int deadline_ms,
			  const Hetsched__V1__HookRequest *news, const Hetsched__V1__HookRequest *request,
			  Hetsched__V1__HookReply **reply);

/* Whether a connection is kept, and its other end is there and silent. */
bool wire_is_kept(struct wire_line *line);

/*
 * Reads one reply out of `size` bytes (a frame without its length). NULL unless it is a reply of our version,
 * in the one form that encoders write: so a string with a NUL inside, which C would cut short, is no reply.
 */
Hetsched__V1__HookReply *wire_decode(const uint8_t *bytes, size_t size);

#endif
