/*-------------------------------------------------------------------------
 *
 * pg_guc.h
 *		PostgreSQL's parameter records (guc.c): their memory, their hooks,
 *		their values, and making a value from its text.
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
 *		The memory in which guc.c keeps values.
 */

/* The allocator that guc.c frees its memory with. */
extern char *baton_guc_strdup(const char *string);
extern void baton_guc_free(void *pointer);

/* ----------------------------------------------------------------
 *		The server's table of parameter records, and what guc.c keeps beside
 *		it.
 *
 * pg_guc_table.c has the code for 15, and that for 16 and later.
 */

/* Called once, at attach.  Returns NULL, or why the table cannot be used. */
extern const char *baton_guc_table_attach(void);

/* The parameter of that name, or NULL. */
extern struct config_generic *baton_guc_find(const char *name);

/*
 * All records, sorted by name.  In an attached backend the array is the
 * table's own, and valid until the table changes; elsewhere it is palloc'd.
 */
extern struct config_generic **baton_guc_records(int *count);

/*
 * Rises when a record has been added to the table, removed from it, or
 * replaced.  Cheap enough for every boundary.
 */
extern uint64 baton_guc_table_version(void);

/*
 * The first creates a placeholder without a value; none of that name may
 * exist.  It returns NULL if a library has reserved the prefix.  The second
 * removes a placeholder, which must have no value.
 */
extern struct config_generic *baton_guc_add_placeholder(const char *name);
extern void baton_guc_remove_placeholder(struct config_generic *record);

/* Is the record a removed placeholder that is still in the table? */
extern bool baton_guc_is_removed(const struct config_generic *record);

/*
 * Are so many removed placeholders in the table that each new one takes long?
 */
extern bool baton_guc_table_is_overgrown(void);

/* Sets the origin of the active value. */
extern void baton_guc_set_origin(struct config_generic *record, GucSource source,
								 GucContext scontext, Oid srole);

/*
 * Has the next ReportChangedGUCOptions() look at the record, which must be a
 * reported parameter, or at all such records.
 */
extern void baton_guc_look_for_report(struct config_generic *record);
extern void baton_guc_look_for_reports(void);

/* ----------------------------------------------------------------
 *		Assign and show hooks of the server's parameters, replaced by
 *		pg_baton's.
 */

/*
 * Each puts a hook into the record of the parameter of that name and returns
 * the server's, which the new hook must call.  If there is no parameter of
 * that type, or none with such a hook, they change nothing and return false.
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

/* The role that a value of role or session_authorization stands for. */
typedef struct BatonGucIdentity
{
	Oid			role;			/* InvalidOid for role "none" */
	bool		superuser;
} BatonGucIdentity;

extern int	baton_guc_compare_names(const char *a, const char *b);

/*
 * Does the parameter concern connections, the log, autovacuum or locks, and no
 * query?
 */
extern bool baton_guc_is_aside(const struct config_generic *record);

/*
 * Is the parameter fixed for the process's life (temp_buffers)?  It is never
 * exchanged: a session is served by backends that have the value which it
 * wants.
 */
extern bool baton_guc_is_of_process(const struct config_generic *record);

/* True for the two parameters with a role as their value. */
extern bool baton_guc_is_identity(const struct config_generic *record);
extern BatonGucIdentity baton_guc_identity(const struct config_generic *record);

/*
 * Is the role that a setting or startup option gave no longer in force, though
 * the parameter still names it?  No other backend could put that in place.
 */
extern bool baton_guc_role_is_lost(void);

/*
 * The extra value of the check hook of these two parameters for that identity,
 * if the hook cannot make it outside a transaction; else NULL.
 */
extern void *baton_guc_role_extra(const BatonGucIdentity *identity);

/* Frees what the value points to, unless the record still refers to it. */
extern void baton_guc_release(struct config_generic *record,
							  config_var_value *value);

/* The value that RESET restores. */
extern BatonGucCell baton_guc_reset_cell(struct config_generic *record);

/*
 * Sets the role that gave the client the right to set the values that are its
 * own.
 */
extern void baton_guc_set_client_role(struct config_generic *record, Oid role);

extern void baton_guc_set_reset(struct config_generic *record,
								const BatonGucCell *cell);

/* Makes the cell the record's active value, and calls the assign hook. */
extern void baton_guc_activate(struct config_generic *record,
							   const BatonGucCell *cell);

/*
 * Sets session_authorization and its reset value to this role's name, as by
 * SetConfigOption() with PGC_BACKEND and PGC_S_OVERRIDE.  The identity must be
 * in force: no assign hook is called.
 */
extern void baton_guc_override_identity(const char *name, const BatonGucIdentity *identity);

/*
 * SetSessionAuthorization(); only baton_report_arm() has is_superuser reported
 * to the client.
 */
extern void baton_guc_set_session_user(const BatonGucIdentity *identity);

/* The active value. */
extern config_var_value baton_guc_active(struct config_generic *record);

/*
 * Clears the text of a string parameter, and its reset value.  Returns false
 * if the parameter is no string.
 */
extern bool baton_guc_blank(const char *name);

/* Set when a parameter that is reported to the client was exchanged. */
extern bool baton_guc_report_touched;

/*
 * Set when session_authorization and is_superuser alone may have been
 * exchanged.
 */
extern bool baton_guc_report_identity_touched;

/* ----------------------------------------------------------------
 *		Making a parameter's value from its text, and the text from the value.
 * ----------------------------------------------------------------
 */

/*
 * Makes a value from its text by the check hook, without changing the record.
 * Returns false if the hook refuses. identity is needed for role and
 * session_authorization only.
 */
extern bool baton_guc_make(struct config_generic *record, const char *text,
						   GucSource source, const BatonGucIdentity *identity,
						   config_var_value *value);

/*
 * Would a library that defines the parameter have adopted the value of the
 * session's placeholder?  Checks privileges, and reads catalogs.
 */
extern bool baton_guc_placeholder_fits(const char *name, const char *text,
									   GucContext scontext, GucSource source,
									   Oid srole);

/* The compiled-in default, as InitializeOneGUCOption in guc.c makes it. */
extern bool baton_guc_make_boot(struct config_generic *record,
								BatonGucCell *cell);

/* Appends the text from which baton_guc_make makes the same value. */
extern void baton_guc_append_text(struct config_generic *record,
								  const config_var_value *value,
								  StringInfo text);

/*
 * Records the value that the client was last told of a reported parameter;
 * NULL: none.
 */
extern void baton_guc_set_reported(struct config_generic *record, const char *value);

/* ----------------------------------------------------------------
 *		log_connections and log_disconnections, as in a new backend.
 */

/* Called by _PG_init, in the postmaster. */
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
