/*
 * wire.c - see wire.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE /* struct ucred */
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define FRAME_HEADER 4

const char *wire_result_text(enum wire_result result)
{
	switch (result) {
	case WIRE_OK:
		return "answered";
	case WIRE_ABSENT:
		return "nobody listens on its socket";
	case WIRE_UNTRUSTED:
		return "its socket belongs to a user who is neither root, nor SlurmUser, nor daemon_user";
	case WIRE_LATE:
		return "no answer within the deadline";
	case WIRE_CUT:
		return "the connection ended half-way";
	case WIRE_GARBAGE:
		return "the answer cannot be read";
	case WIRE_TOO_LONG:
		return "the request is too long to be sent";
	case WIRE_NO_MEMORY:
		return "out of memory";
	}
	return "unknown";
}

int64_t wire_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until `fd` is ready for `events` (fd -1: just waits) or `end_ms` is there. False once it is. */
static bool wait_for(int fd, short events, int64_t end_ms, int64_t at_most_ms)
{
	int64_t left = end_ms - wire_now_ms();
	if (left <= 0)
		return false;
	struct pollfd watched = {.fd = fd, .events = events};
	poll(&watched, 1, (int) (left < at_most_ms ? left : at_most_ms));
	return true;
}

/*
 * A unix socket whose backlog is full answers EAGAIN at once and cannot be polled for: a daemon that is stopped
 * looks like that after a while. Then it is tried again each millisecond until the deadline.
 */
static enum wire_result connect_by(int fd, const struct sockaddr_un *address, int64_t end_ms)
{
	while (connect(fd, (const struct sockaddr *) address, sizeof(*address))) {
		if (errno == EISCONN)
			break;
		if (errno != EAGAIN && errno != EINTR && errno != EINPROGRESS && errno != EALREADY)
			return WIRE_ABSENT;
		if (!wait_for(-1, 0, end_ms, 1))
			return WIRE_LATE;
	}
	return WIRE_OK;
}

/* Credentials of whoever called listen(): a socket that somebody else put in our path is not believed. */
static enum wire_result check_peer(int fd, uid_t daemon_uid)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || size != sizeof(peer))
		return WIRE_UNTRUSTED;
	if (peer.uid == (uid_t) -1) /* nobody has it: it is how daemon_uid says "nobody" */
		return WIRE_UNTRUSTED;
	return peer.uid == 0 || peer.uid == geteuid() || peer.uid == daemon_uid ? WIRE_OK : WIRE_UNTRUSTED;
}

static enum wire_result send_all(int fd, const uint8_t *bytes, size_t size, int64_t end_ms)
{
	while (size) {
		ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent > 0) {
			bytes += sent;
			size -= (size_t) sent;
		} else if (errno == EAGAIN) {
			if (!wait_for(fd, POLLOUT, end_ms, INT32_MAX))
				return WIRE_LATE;
		} else if (errno != EINTR) {
			return WIRE_CUT;
		}
	}
	return WIRE_OK;
}

/* The deadline is looked at before each read, so a peer that drips bytes cannot stretch it. */
static enum wire_result receive_all(int fd, uint8_t *bytes, size_t size, int64_t end_ms)
{
	while (size) {
		if (!wait_for(fd, POLLIN, end_ms, INT32_MAX))
			return WIRE_LATE;
		ssize_t got = recv(fd, bytes, size, MSG_DONTWAIT);
		if (got > 0) {
			bytes += got;
			size -= (size_t) got;
		} else if (!got || (errno != EAGAIN && errno != EINTR)) {
			return WIRE_CUT;
		}
	}
	return WIRE_OK;
}

static size_t frame_size(const Hetsched__V1__HookRequest *request)
{
	return request ? FRAME_HEADER + hetsched__v1__hook_request__get_packed_size(request) : 0;
}

static uint8_t *put_frame(uint8_t *at, const Hetsched__V1__HookRequest *request)
{
	if (!request)
		return at;
	uint32_t header = htonl((uint32_t) (frame_size(request) - FRAME_HEADER));
	memcpy(at, &header, FRAME_HEADER);
	return at + FRAME_HEADER + hetsched__v1__hook_request__pack(request, at + FRAME_HEADER);
}

static enum wire_result send_requests(int fd, const Hetsched__V1__HookRequest *news,
				      const Hetsched__V1__HookRequest *request, int64_t end_ms)
{
	size_t first = frame_size(news), second = frame_size(request);

	if (first > FRAME_HEADER + WIRE_MESSAGE_MAX || second > FRAME_HEADER + WIRE_MESSAGE_MAX)
		return WIRE_TOO_LONG;
	uint8_t *frames = malloc(first + second);
	if (!frames)
		return WIRE_NO_MEMORY;
	put_frame(put_frame(frames, news), request);
	enum wire_result result = send_all(fd, frames, first + second, end_ms);
	free(frames);
	return result;
}

Hetsched__V1__HookReply *wire_decode(const uint8_t *bytes, size_t size)
{
	Hetsched__V1__HookReply *reply = hetsched__v1__hook_reply__unpack(NULL, size, bytes);
	if (!reply)
		return NULL;
	if (reply->version == WIRE_VERSION && hetsched__v1__hook_reply__get_packed_size(reply) == size)
		return reply;
	hetsched__v1__hook_reply__free_unpacked(reply, NULL);
	return NULL;
}

static enum wire_result receive_reply(int fd, Hetsched__V1__HookReply **reply, int64_t end_ms)
{
	uint32_t header;
	enum wire_result result = receive_all(fd, (uint8_t *) &header, FRAME_HEADER, end_ms);
	if (result)
		return result;
	size_t size = ntohl(header);
	if (!size || size > WIRE_MESSAGE_MAX)
		return WIRE_GARBAGE;
	uint8_t *bytes = malloc(size);
	if (!bytes)
		return WIRE_NO_MEMORY;
	result = receive_all(fd, bytes, size, end_ms);
	if (!result) {
		*reply = wire_decode(bytes, size);
		result = *reply ? WIRE_OK : WIRE_GARBAGE;
	}
	free(bytes);
	return result;
}

static enum wire_result call_up(const char *socket_path, uid_t daemon_uid, int64_t end_ms, int *fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*fd = -1;
	if (strlen(socket_path) >= sizeof(address.sun_path))
		return WIRE_ABSENT;
	memcpy(address.sun_path, socket_path, strlen(socket_path));
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return WIRE_ABSENT;
	enum wire_result result = connect_by(*fd, &address, end_ms);
	return result ? result : check_peer(*fd, daemon_uid);
}

static enum wire_result exchange(int fd, const Hetsched__V1__HookRequest *news,
				 const Hetsched__V1__HookRequest *request, Hetsched__V1__HookReply **reply,
				 int64_t end_ms)
{
	enum wire_result result = send_requests(fd, news, request, end_ms);
	return result ? result : receive_reply(fd, reply, end_ms);
}

/* The connection that was kept; -1 if there is none, its other end has gone, or said what nobody asked for. */
static int take_kept(struct wire_line *line)
{
	int fd = line ? atomic_exchange(&line->kept, -1) : -1;
	struct pollfd watched = {.fd = fd, .events = POLLIN};

	if (fd < 0 || !poll(&watched, 1, 0))
		return fd;
	close(fd);
	return -1;
}

static void keep(struct wire_line *line, int fd)
{
	int other = line ? atomic_exchange(&line->kept, fd) : fd;
	if (other >= 0)
		close(other);
}

bool wire_is_kept(struct wire_line *line)
{
	int fd = take_kept(line);

	if (fd >= 0)
		keep(line, fd);
	return fd >= 0;
}

void wire_hang_up(struct wire_line *line)
{
	keep(line, -1);
}

enum wire_result wire_ask(struct wire_line *line, const char *socket_path, uid_t daemon_uid, int deadline_ms,
			  const Hetsched__V1__HookRequest *news, const Hetsched__V1__HookRequest *request,
			  Hetsched__V1__HookReply **reply)
{
	int64_t end_ms = wire_now_ms() + deadline_ms;
	int fd = take_kept(line);
	enum wire_result result = WIRE_CUT;

	*reply = NULL;
	if (fd >= 0)
		result = exchange(fd, news, request, reply, end_ms);
	if (result == WIRE_CUT) { /* nothing was kept, or the daemon has been started anew since */
		if (fd >= 0)
			close(fd);
		result = call_up(socket_path, daemon_uid, end_ms, &fd);
		if (!result)
			result = exchange(fd, news, request, reply, end_ms);
	}
	if (!result)
		keep(line, fd);
	else if (fd >= 0)
		close(fd); /* a late answer must never be read as the next one */
	return result;
}
