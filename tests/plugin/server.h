/*
 * server.h - a scripted daemon in a process of its own
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef SERVER_H
#define SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hetsched/v1/hook.pb-c.h"

enum manner {
	SEND,	/* sends `bytes` as they are, header and all, and closes */
	DRIP,	/* the same, a byte each 20 ms */
	SILENT, /* reads the request and says nothing */
	DEAF,	/* never accepts: like a stopped process */
	CLOSE,	/* closes without reading */
	KEEP,	/* answers every request of a caller, on one connection */
	BABBLE, /* the same, and says each answer twice */
	CUT,	/* answers the first request of a caller, and goes away when it has read the second */
};

/* Listens on `path` as user `uid` and treats each caller in this manner until server_stop(). */
void server_start(const char *path, enum manner manner, const uint8_t *bytes, size_t size, uid_t uid);
void server_stop(void);

/* Stops the process as SIGSTOP does, and lets it go on. */
void server_pause(bool paused);

/* The same with a well-formed reply: as said, and in the manner SEND. */
void server_start_saying(const char *path, enum manner manner, const Hetsched__V1__HookReply *reply);
void server_start_reply(const char *path, const Hetsched__V1__HookReply *reply);

/* How many requests and connections there were, and the last request, which the server frees. */
int server_calls(void);
int server_connections(void);
int server_used(void); /* spare replies that were said to be used; these are no requests */
const Hetsched__V1__HookRequest *server_request(void);

#endif
