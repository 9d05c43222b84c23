/*-------------------------------------------------------------------------
 *
 * attach_origin.h
 *		A pool's backend is let in by the line that let its client in.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ATTACH_ORIGIN_H
#define BATON_ATTACH_ORIGIN_H

/* From _PG_init, in the postmaster. */
extern void baton_attach_origin_init(void);

/* Authentication is over, however it went: the connection is its own again. */
extern void baton_attach_origin_end(void);

#endif							/* BATON_ATTACH_ORIGIN_H */
