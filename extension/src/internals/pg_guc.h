/*-------------------------------------------------------------------------
 *
 * pg_guc.h
 *		PostgreSQL's parameter records (guc.c): their memory, their hooks, the
 *		values in them, and making a value from its text.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_GUC_H
#define BATON_PG_GUC_H

#include "lib/stringinfo.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

/* ----------------------------------------------------------------
 *		The memory that guc.c keeps values in.
 * ----------------------------------------------------------------
 */

/* The allocator that guc.c frees with. */
extern char *baton_guc_strdup(const char *string);
extern void baton_guc_free(void *pointer);

/* ----------------------------------------------------------------
 *		The server's table of parameter records, and what guc.c keeps beside it.
 *
 * pg_guc_table.c is for 15, pg_guc_table.c for 16 and later.
 * ----------------------------------------------------------------
 */

/* Once, at attach.  NULL, or why the table cannot be worked with. */
extern const char *baton_guc_table_attach(void);

/* The parameter of that name; NULL if there is none. */
extern struct config_generic *baton_guc_find(const char *name);

/*
 * All records, sorted by name.  Of an attached backend the array is the
 * table's, and good until the table changes; else it is palloc'd.
 */
extern struct config_generic **baton_guc_records(int *count);

/*
 * Rises when a record has come into the table, gone from it, or been replaced
 * by another.  Cheap enough for every boundary.
 */
extern uint64 baton_guc_table_version(void);

/*
 * The placeholder of that name, which must not be there, comes into being
 * without a value; NULL if a library has reserved the prefix.  And it goes,
 * when it is without a value.
 */
extern struct config_generic *baton_guc_add_placeholder(const char *name);
extern void baton_guc_remove_placeholder(struct config_generic *record);

/* Is it one that was removed, but has stayed in the table? */
extern bool baton_guc_is_removed(const struct config_generic *record);

/* So many have stayed that each new one takes long. */
extern bool baton_guc_table_is_overgrown(void);

/* Where the active value comes from. */
extern void baton_guc_set_origin(struct config_generic *record, GucSource source,
								 GucContext scontext, Oid srole);

/*
 * The next ReportChangedGUCOptions() looks at the record, which must be
 * reported to clients, and at all such records.
 */
extern void baton_guc_look_for_report(struct config_generic *record);
extern void baton_guc_look_for_reports(void);

/* ----------------------------------------------------------------
 *		Assign and show hooks of the server's parameters, replaced by ours.
 * ----------------------------------------------------------------
 */

/*
 * Each puts a hook into the record of the parameter of that name and tells
 * what stood there, which ours must call.  False, and nothing is done, if there
 * is no parameter of that type, or none with such a hook.
 */
extern bool baton_guc_hook_real(const char *name, GucRealAssignHook assign,
								GucRealAssignHook *server_assign);
extern bool baton_guc_hook_enum(const char *name, GucEnumAssignHook assign,
								GucEnumAssignHook *server_assign);
extern bool baton_guc_hook_int(const char *name, GucIntAssignHook assign, GucShowHook show,
							   GucIntAssignHook *server_assign, GucShowHook *server_show);

/* ----------------------------------------------------------------
 *		Reading and exchanging the values in PostgreSQL's parameter records.
 * ----------------------------------------------------------------
 */

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

/*
 * session_authorization and what RESET goes back to become this role's name, as by
 * SetConfigOption() with PGC_BACKEND and PGC_S_OVERRIDE.  The identity must be in force: no
 * assign hook is called.
 */
extern void baton_guc_override_identity(const char *name, const BatonGucIdentity *identity);

/* SetSessionAuthorization(); the client hears of is_superuser by baton_report_arm() alone. */
extern void baton_guc_set_session_user(const BatonGucIdentity *identity);

/* The active value. */
extern config_var_value baton_guc_active(struct config_generic *record);

/* The text of a string goes, what RESET goes back to as well.  False if it is none. */
extern bool baton_guc_blank(const char *name);

/* Set when a parameter that is reported to the client was exchanged. */
extern bool baton_guc_report_touched;

/* Set when of these only session_authorization and is_superuser may have been. */
extern bool baton_guc_report_identity_touched;

/* ----------------------------------------------------------------
 *		Making a parameter's value from its text, and the text from the value.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		log_connections and log_disconnections, as a new backend has them.
 * ----------------------------------------------------------------
 */

/* From _PG_init, in the postmaster. */
extern void baton_log_settings_init(void);

/*
 * In any process of the server: does log_connections ask for "connection
 * received", "connection authenticated", "connection authorized"?  Up to 17 it
 * asks for all three or none.
 */
extern bool baton_log_receipt(void);
extern bool baton_log_authentication(void);
extern bool baton_log_authorization(void);
extern bool baton_log_disconnections(void);

#endif							/* BATON_PG_GUC_H */
