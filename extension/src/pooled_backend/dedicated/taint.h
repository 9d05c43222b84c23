/*-------------------------------------------------------------------------
 *
 * taint.h
 *		Start-up of the part that tells whether a session may leave.  The
 *		rest of its interface is in context.h.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_H
#define BATON_TAINT_H

/* Once, at attach.  NULL, or why this backend cannot pool. */
extern const char *baton_taint_attach(void);

/* Temporary objects of this session that outlive a transaction. */
extern bool baton_may_have_temporary_objects(void);

/* For taint_clean.c: nothing has been found, look anew at what is noted. */
extern void baton_taint_reset(void);

#endif							/* BATON_TAINT_H */
