/*-------------------------------------------------------------------------
 *
 * reset_values.h
 *		The values that RESET returns to: startup options and settings of role
 *		and database, as of the session's login.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_RESET_VALUES_H
#define BATON_RESET_VALUES_H

#include "lib/ilist.h"
#include "lib/stringinfo.h"

#include "baton_shared.h"
#include "context_params.h"
#include "pg_guc.h"

/* ----------------------------------------------------------------
 *		One parameter whose reset value in the session differs from the
 *		backend's: putting it in force, and removing it.
 * ----------------------------------------------------------------
 */

typedef struct BatonResetItem
{
	dlist_node	node;			/* in BatonPlaced.resets */
	uint64		serial;			/* its entry's, 0: unknown */
	char	   *name;
	char	   *value;			/* as in the entry */
	Size		value_length;
	struct config_generic *record;	/* if exchanged: its record */
	bool		exchanged;
	bool		plain;			/* a plain value made here, not the session's */
	bool		absent;			/* if exchanged: the session does not have
								 * this placeholder at all */
	bool		out;			/* if absent: taken out at present */
	bool		keep;			/* only within install */
	bool		refused;		/* only within install */
	BatonGucCell other;			/* if exchanged: the backend's own value */
} BatonResetItem;

/*
 * Does its reset value belong to a session? These are the settings and
 * options, and client_encoding from any source: check_client_encoding
 * (variable.c) refuses the value of a reload, so a session keeps the one that
 * it began with.
 */
extern bool baton_reset_is_carried(const struct config_generic *record);

extern BatonResetItem *baton_reset_item_add(const char *name, Size name_length,
											const char *value, Size value_length);
extern void baton_reset_item_drop(BatonResetItem *item);

/* The parameter's item, NULL if it has none. */
extern BatonResetItem *baton_reset_item_find(const char *name);

/*
 * Puts the item's value in force, unless the backend itself has it. The check
 * hook may refuse because of another parameter that is still to come: the
 * first function then returns false, the second raises an error.
 */
extern void baton_reset_item_apply(BatonResetItem *item);

/* Puts the backend's own value in force again. */
extern void baton_reset_item_undo(BatonResetItem *item);

/*
 * May the items stay in place when the backend becomes another role's? Not
 * those of libraries: a library that is loaded later checks the privileges
 * with which a value was set, and drops it.
 */
extern bool baton_reset_items_may_stay(void);

/*
 * The items stay, and the authenticated user has changed: the clients' options
 * count as set by the new user (srole and reset_srole of a record; guc.c, 15
 * to 18).
 */
extern void baton_reset_items_follow_role(void);

/*
 * Appends the value of a RESET entry, in the format described in
 * reset_values.c.
 */
extern void baton_reset_append_value(struct config_generic *record, const BatonGucCell *cell,
									 const BatonGucIdentity *identity, StringInfo value);

/* ----------------------------------------------------------------
 *		What the configuration files say about parameters for which the backend
 *		has a setting of role or database.
 * ----------------------------------------------------------------
 */

/*
 * Reads the files as the server itself does: the next boundary has yet to
 * follow.
 */
extern void baton_files_read_by_server(void);

/*
 * Called once before the backend has read startup options and settings of role
 * and database, and once after.
 */
extern void baton_plain_record(void);

/* Are the files' values known for all of the backend's own settings? */
extern bool baton_plain_can_be_forgotten(void);

/*
 * Replaces the backend's own settings, which can be forgotten, by another
 * role's. They get the files' values; then each new setting is announced
 * before it is applied; in the end those that took no effect are forgotten.
 * There must be no item.
 */
extern void baton_plain_forget_settings(void);
extern void baton_plain_expect(const char *name);
extern void baton_plain_expect_no_more(void);

/* Has the backend such settings? */
extern bool baton_plain_any(void);

/* Gives each of them that has no item an item with the plain value. */
extern void baton_plain_apply(void);

/* The same for the one of that name, if there is one. */
extern void baton_plain_apply_to(const char *name);

/* Removes such items; returns true if there were any. */
extern bool baton_plain_undo(void);

/* ----------------------------------------------------------------
 *		The values that RESET returns to in a session: startup options and the
 *		settings of its role and database as of its login.
 * ----------------------------------------------------------------
 */

extern const char *baton_reset_attach(void);

/*
 * Puts the session's reset values in place; for all others the backend's own.
 */
extern void baton_reset_install(const BatonEntryList *wanted);

/* Puts the backend's own reset values in place. */
extern void baton_reset_neutralise(void);

/*
 * Startup options come before the settings of role and database (InitPostgres
 * in postinit.c), so those are removed until the options are applied.
 */
extern void baton_reset_prepare_greeting(void);

/*
 * Applies startup options as process_startup_options (postinit.c) does, in the
 * caller's transaction, and puts the RESET items into the delta. The backend's
 * own reset values must be in place. Returns BATON_GREETING_*: for how long
 * other sessions of this kind may get the same greeting.
 */
extern uint32 baton_reset_greet(const BatonEntryList *startup);

/* Reads the configuration files again, as the backend itself must see them. */
extern void baton_reset_reload(void);

/* The same if the server itself has read them meanwhile. */
extern void baton_reset_follow_reload(void);

#endif							/* BATON_RESET_VALUES_H */
