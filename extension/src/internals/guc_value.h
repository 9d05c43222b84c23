/*-------------------------------------------------------------------------
 *
 * guc_value.h
 *		Making a parameter's value from its text, and the text from the value.
 *
 * See guc_value.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_GUC_VALUE_H
#define BATON_GUC_VALUE_H

#include "lib/stringinfo.h"

#include "context_guc.h"

/*
 * Makes a value out of its text as the check hook wants it, changing nothing.
 * False if the hook refuses.  identity is needed for role and
 * session_authorization only.
 */
extern bool baton_guc_make(struct config_generic *record, const char *text,
						   GucSource source, const BatonGucIdentity *identity,
						   config_var_value *value);

/*
 * Would a library that defines the parameter have taken the value over from
 * the placeholder that the session has?  Privileges count, catalogs are looked
 * at.
 */
extern bool baton_guc_placeholder_fits(const char *name, const char *text,
									   GucContext scontext, GucSource source,
									   Oid srole);

/* The compiled-in default, as guc.c's InitializeOneGUCOption makes it. */
extern bool baton_guc_make_boot(struct config_generic *record,
								BatonGucCell *cell);

/* Appends the text from which baton_guc_make makes the same value. */
extern void baton_guc_append_text(struct config_generic *record,
								  const config_var_value *value,
								  StringInfo text);

/* What the client has been told of a reported parameter; NULL: nothing. */
extern void baton_guc_set_reported(struct config_generic *record, const char *value);

#endif							/* BATON_GUC_VALUE_H */
