/*-------------------------------------------------------------------------
 *
 * opening.h
 *		A backend that the dispatcher opens for a role's sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OPENING_H
#define BATON_OPENING_H

/* From _PG_init, in the postmaster. */
extern void baton_opening_init(void);

/*
 * ClientAuthentication() is over: the dispatcher has opened this backend, and
 * InitPostgres() has yet to look up as whom it starts.
 */
extern void baton_opening_authenticated(void);

/*
 * As whom it was to start, if that role may log in, and whether it is to serve no other;
 * InvalidOid if the dispatcher has not opened it.
 */
extern Oid	baton_opened_for(bool *apart);

#endif							/* BATON_OPENING_H */
