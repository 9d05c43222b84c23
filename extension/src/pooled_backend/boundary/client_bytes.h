/*-------------------------------------------------------------------------
 *
 * client_bytes.h
 *		How many bytes the client of this session has sent so far.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_BYTES_H
#define BATON_CLIENT_BYTES_H

/*
 * As the kernel has received them, of its own TCP connection, by TLS too; 0 if it
 * cannot tell: on a Unix socket.  May be called by a signal handler.
 */
extern uint64 baton_client_bytes(void);

#endif							/* BATON_CLIENT_BYTES_H */
