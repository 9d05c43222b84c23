/*-------------------------------------------------------------------------
 *
 * context_placeholders.h
 *		Custom parameters of which only the session knows ("SET my.var").
 *
 * See context_placeholders.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_PLACEHOLDERS_H
#define BATON_CONTEXT_PLACEHOLDERS_H

#include "utils/guc_tables.h"

/* NULL if this server's parameter table can be worked with, else why not. */
extern const char *baton_placeholders_attach(void);

/*
 * The placeholder of that name comes into being, without a value.  NULL if
 * the name may not be used (a library has reserved the prefix).
 */
extern struct config_generic *baton_placeholder_create(const char *name);

/*
 * The placeholder, which must be without a value, is there no longer.  Does
 * nothing if it is the server's own.
 */
extern void baton_placeholder_hide(struct config_generic *record);

/*
 * Remembers which placeholders belong to the server rather than to a session:
 * at attach all there are but those that a setting of role or database or the
 * client brought, later those that the configuration files mention.
 * They stay even when the files mention them no longer, as the postmaster,
 * of which each new session is a copy, keeps them.
 */
extern void baton_placeholders_note_own(bool all);
extern bool baton_placeholder_is_own(const struct config_generic *record);

/*
 * Rises when a record becomes the server's own: the table of parameters does
 * not look otherwise then.
 */
extern uint64 baton_placeholder_changes;

#endif							/* BATON_CONTEXT_PLACEHOLDERS_H */
