/*-------------------------------------------------------------------------
 *
 * keepalive.h
 *		The settings of a client's socket that parameters ask for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_KEEPALIVE_H
#define BATON_KEEPALIVE_H

/* Socket and parameters of the session are in place. */
extern void baton_keepalive_put(void);

#endif							/* BATON_KEEPALIVE_H */
