/*-------------------------------------------------------------------------
 *
 * context_guc.h
 *		Reading and exchanging the values in PostgreSQL's parameter records.
 *
 * See context_guc.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_GUC_H
#define BATON_CONTEXT_GUC_H

#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "guc_table.h"

/*
 * A value with all that guc.c keeps beside it.  Strings and extras inside are
 * malloc'd, because guc.c frees them (guc_malloc in guc.c).
 */
typedef struct BatonGucCell
{
	config_var_value value;		/* value and the check hook's "extra" */
	GucSource	source;
	GucContext	scontext;
	Oid			srole;
} BatonGucCell;

/* Who a value of role or session_authorization stands for. */
typedef struct BatonGucIdentity
{
	Oid			role;			/* InvalidOid for role "none" */
	bool		superuser;
} BatonGucIdentity;

extern int	baton_guc_compare_names(const char *a, const char *b);

/* Is it about connections, the log, autovacuum or locks: not about a query? */
extern bool baton_guc_is_aside(const struct config_generic *record);

/*
 * Is it the process's for good (temp_buffers)?  Sessions are served where it is as
 * they want it, and it is never exchanged.
 */
extern bool baton_guc_is_of_process(const struct config_generic *record);

/* True for the two parameters whose value is a role. */
extern bool baton_guc_is_identity(const struct config_generic *record);
extern BatonGucIdentity baton_guc_identity(const struct config_generic *record);

/*
 * Is the role that a setting or startup option gave not in force any more, though
 * the parameter names it still?  Nowhere else could that be put in place.
 */
extern bool baton_guc_role_is_lost(void);

/*
 * What the check hook of these two would give for that identity, if it cannot be
 * had from it outside a transaction; else NULL.
 */
extern void *baton_guc_role_extra(const BatonGucIdentity *identity);

/* Frees what the value points to, unless the record still refers to it. */
extern void baton_guc_release(struct config_generic *record,
							  config_var_value *value);

/* The value that RESET goes back to. */
extern BatonGucCell baton_guc_reset_cell(struct config_generic *record);

/* By this role's rights the client has given the values that are its. */
extern void baton_guc_set_client_role(struct config_generic *record, Oid role);

extern void baton_guc_set_reset(struct config_generic *record,
								const BatonGucCell *cell);

/* Makes the cell the record's active value; the assign hook is called. */
extern void baton_guc_activate(struct config_generic *record,
							   const BatonGucCell *cell);

/* The active value. */
extern config_var_value baton_guc_active(struct config_generic *record);

/* The text of a string goes, what RESET goes back to as well.  False if it is none. */
extern bool baton_guc_blank(const char *name);

/* Set when a parameter that is reported to the client was exchanged. */
extern bool baton_guc_report_touched;

#endif							/* BATON_CONTEXT_GUC_H */
