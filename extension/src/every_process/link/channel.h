/*-------------------------------------------------------------------------
 *
 * channel.h
 *		Frames between a backend and the dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CHANNEL_H
#define BATON_CHANNEL_H

#include <sys/socket.h>

#include "lib/stringinfo.h"

#include "baton_shared.h"

/*
 * The dispatcher's control socket, in the data directory (our cwd).  pg_rewind reads all that is there, and fails at a
 * socket, but for what a server leaves behind for nobody: such as PG_STAT_TMP_DIR
 * (excludeDirContents in filemap.c and basebackup.c; 15 to 18).
 */
#define BATON_CONTROL_SOCKET "pg_stat_tmp/pg_baton.ctl"

#define BATON_FRAME_DESCRIPTORS (2 + BATON_SESSION_THREADS_MAX)

typedef enum BatonReceived
{
	BATON_RECEIVED_FRAME,
	BATON_RECEIVED_NOTHING,		/* not yet */
	BATON_RECEIVED_CLOSED		/* the other end is gone */
} BatonReceived;

/* One frame as received; payload is valid until the next receive. */
typedef struct BatonIncoming
{
	BatonFrame	frame;
	const char *payload;
	int			descriptors[BATON_FRAME_DESCRIPTORS];
	int			descriptor_count;
} BatonIncoming;

/*
 * Connects to the dispatcher; -1 and errno if that fails.  While more wait to
 * be accepted than may, it waits, ten seconds at most; an interrupt ends that.
 */
extern int	baton_channel_connect(void);

/*
 * Sends a message, in as many frames as it needs.  Waits while the socket's
 * buffer is full, and serves interrupts meanwhile, which may end the process.
 * False if the other end is gone, or has taken nothing for as long as the
 * socket's SO_SNDTIMEO says.
 */
extern bool baton_channel_send(int fd, uint16 type, uint64 session,
							   const char *payload, Size length);

/* Receives one frame; never blocks. */
extern BatonReceived baton_channel_receive(int fd, BatonIncoming *incoming);

/*
 * Closes what came with a frame, and forgets it: whoever has received a frame that
 * is to carry no descriptors, or too many, does so.
 */
extern void baton_incoming_close(BatonIncoming *incoming);

/*
 * The descriptors of a message that was received: `most` at most, or none if there
 * were more, or some that this process had no number for.  What is not returned
 * is closed.
 */
extern int	baton_descriptors_take(struct msghdr *message, int *descriptors, int most);

/*
 * Whoever waits here looks for what is no interrupt of the server's, too, each time
 * his latch is set.
 */
extern void baton_channel_look_also(void (*look) (void));

/* Waits for a frame, or the end, and serves interrupts meanwhile. */
extern BatonReceived baton_channel_await(int fd, BatonIncoming *incoming);

#endif							/* BATON_CHANNEL_H */
