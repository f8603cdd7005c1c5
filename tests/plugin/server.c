/*
 * server.c - see server.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUEST_MAX 131072

struct shared {
	atomic_int ready, calls, connections, used;
	atomic_size_t request_size;
	uint8_t request[REQUEST_MAX];
};

static struct shared *shared;
static pid_t child;
static Hetsched__V1__HookRequest *last_request;

static void need(bool fine, const char *what)
{
	if (fine)
		return;
	perror(what);
	_exit(111);
}

static bool read_exactly(int fd, void *to, size_t size)
{
	for (size_t got = 0; got < size;) {
		ssize_t more = read(fd, (uint8_t *) to + got, size - got);
		if (more <= 0)
			return false;
		got += (size_t) more;
	}
	return true;
}

static bool read_request(int fd)
{
	uint32_t header;

	if (!read_exactly(fd, &header, sizeof(header)))
		return false;
	size_t size = ntohl(header);
	if (size > REQUEST_MAX || !read_exactly(fd, shared->request, size))
		return false;
	shared->request_size = size;
	return true;
}

/* Stays with a caller until it has enough. */
static void converse(int fd, enum manner manner, const uint8_t *bytes, size_t size)
{
	uint8_t twice[2048];

	need(2 * size <= sizeof(twice), "reply");
	memcpy(twice, bytes, size);
	memcpy(twice + size, bytes, size);
	for (int asked = 0; read_request(fd); asked++) {
		if (server_request()->what_case == HETSCHED__V1__HOOK_REQUEST__WHAT_USED) {
			shared->used += (int) last_request->used->n_decision_ids;
			asked--; /* it has no reply */
			continue;
		}
		shared->calls++;
		if (asked && manner == CUT)
			return;
		if (send(fd, twice, manner == BABBLE ? 2 * size : size, MSG_NOSIGNAL) < 0)
			return;
	}
}

static void treat(int fd, enum manner manner, const uint8_t *bytes, size_t size)
{
	shared->connections++;
	if (manner == CLOSE)
		return;
	if (manner >= KEEP) {
		converse(fd, manner, bytes, size);
		return;
	}
	read_request(fd);
	shared->calls++;
	if (manner == SILENT) {
		char byte;
		while (read(fd, &byte, 1) > 0) /* until the caller gives up */
			;
		return;
	}
	size_t step = manner == DRIP ? 1 : size;
	for (size_t sent = 0; sent < size; sent += step) {
		if (send(fd, bytes + sent, step, MSG_NOSIGNAL) < 0)
			return;
		if (manner == DRIP)
			usleep(20000);
	}
}

static void serve(const char *path, enum manner manner, const uint8_t *bytes, size_t size, uid_t uid)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	need(listener >= 0, "socket");
	need(!bind(listener, (struct sockaddr *) &address, sizeof(address)), path);
	need(uid == geteuid() || !seteuid(uid), "seteuid"); /* listen() fixes what the caller sees */
	need(!listen(listener, 0), "listen");
	shared->ready = 1;
	for (;;) {
		if (manner == DEAF)
			pause();
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			continue;
		treat(fd, manner, bytes, size);
		close(fd);
	}
}

void server_start(const char *path, enum manner manner, const uint8_t *bytes, size_t size, uid_t uid)
{
	if (!shared) {
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		need(shared != MAP_FAILED, "mmap");
	}
	shared->ready = shared->calls = shared->connections = shared->used = 0;
	shared->request_size = 0;
	unlink(path);
	child = fork();
	need(child >= 0, "fork");
	if (!child)
		serve(path, manner, bytes, size, uid);
	while (!shared->ready) {
		need(!waitpid(child, NULL, WNOHANG), "the server ended");
		usleep(1000);
	}
}

void server_start_saying(const char *path, enum manner manner, const Hetsched__V1__HookReply *reply)
{
	uint8_t frame[65536];
	size_t size = hetsched__v1__hook_reply__get_packed_size(reply);
	uint32_t header = htonl((uint32_t) size);

	need(size + sizeof(header) <= sizeof(frame), "reply");
	memcpy(frame, &header, sizeof(header));
	hetsched__v1__hook_reply__pack(reply, frame + sizeof(header));
	server_start(path, manner, frame, sizeof(header) + size, geteuid());
}

void server_start_reply(const char *path, const Hetsched__V1__HookReply *reply)
{
	server_start_saying(path, SEND, reply);
}

void server_stop(void)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	hetsched__v1__hook_request__free_unpacked(last_request, NULL);
	last_request = NULL;
}

void server_pause(bool paused)
{
	kill(child, paused ? SIGSTOP : SIGCONT);
	if (paused)
		waitpid(child, NULL, WUNTRACED);
}

int server_calls(void)
{
	return shared->calls;
}

int server_connections(void)
{
	return shared->connections;
}

int server_used(void)
{
	return shared->used;
}

const Hetsched__V1__HookRequest *server_request(void)
{
	hetsched__v1__hook_request__free_unpacked(last_request, NULL);
	last_request = hetsched__v1__hook_request__unpack(NULL, shared->request_size, shared->request);
	return last_request;
}
