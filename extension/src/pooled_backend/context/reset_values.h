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
 *		One parameter whose reset value the session has otherwise than the
 *		backend: putting it in force, and taking it back.
 * ----------------------------------------------------------------
 */

typedef struct BatonResetItem
{
	dlist_node	node;			/* in BatonPlaced.resets */
	uint64		serial;			/* its entry's, 0 if not known */
	char	   *name;
	char	   *value;			/* as in the entry */
	Size		value_length;
	struct config_generic *record;	/* if exchanged: of which */
	bool		exchanged;
	bool		plain;			/* made here, not of the session's */
	bool		absent;			/* if exchanged: the session has no such
								 * placeholder at all */
	bool		out;			/* if absent: taken out now */
	bool		keep;			/* only within install */
	bool		refused;		/* only within install */
	BatonGucCell other;			/* if exchanged: the backend's own */
} BatonResetItem;

/*
 * Is its reset value one that belongs to a session?  Those, and
 * client_encoding from wherever: check_client_encoding (variable.c) refuses
 * what a reload says, so a session keeps the one that it began with.
 */
extern bool baton_reset_is_carried(const struct config_generic *record);

extern BatonResetItem *baton_reset_item_add(const char *name, Size name_length,
											const char *value, Size value_length);
extern void baton_reset_item_drop(BatonResetItem *item);

/* The parameter's item, NULL if it has none. */
extern BatonResetItem *baton_reset_item_find(const char *name);

/*
 * Puts the item's value in force, unless the backend has it by itself.  The
 * check hook may refuse, because of another parameter that is still to come:
 * the first then says false, the second makes an error of it.
 */
extern void baton_reset_item_apply(BatonResetItem *item);

/* The backend's own value is in force again. */
extern void baton_reset_item_undo(BatonResetItem *item);

/*
 * May they stay in place as the backend becomes another role's?  Not those of libraries:
 * one that is loaded later asks by whose rights a value was given, and drops it.
 */
extern bool baton_reset_items_may_stay(void);

/*
 * Those stay, and the authenticated user is another one, by whose rights the clients' options count from
 * now on (srole and reset_srole of a record; guc.c, 15 to 18).
 */
extern void baton_reset_items_follow_role(void);

/* The value of a RESET entry, as reset_values.c describes it. */
extern void baton_reset_append_value(struct config_generic *record, const BatonGucCell *cell,
									 const BatonGucIdentity *identity, StringInfo value);

/* ----------------------------------------------------------------
 *		What the configuration files say of parameters that the backend has a
 *		setting of role or database for.
 * ----------------------------------------------------------------
 */

/* As the server itself reads them: the next boundary has yet to follow. */
extern void baton_files_read_by_server(void);

/*
 * Once, when the backend has read neither startup options nor settings of role
 * and database, and once when it has.
 */
extern void baton_plain_record(void);

/* Is it known of all of the backend's own settings what the files say? */
extern bool baton_plain_can_be_forgotten(void);

/*
 * Another role's settings take the place of the backend's own, which can be forgotten:
 * they become what the files say, then each is announced before it is applied, and in the
 * end those that came to nothing are forgotten.  No item may be there.
 */
extern void baton_plain_forget_settings(void);
extern void baton_plain_expect(const char *name);
extern void baton_plain_expect_no_more(void);

/* Has the backend such settings? */
extern bool baton_plain_any(void);

/* Those of them that no item is for get one with the plain value. */
extern void baton_plain_apply(void);

/* The same for the one of that name, if it is such. */
extern void baton_plain_apply_to(const char *name);

/* Such items are taken away; true if there were any. */
extern bool baton_plain_undo(void);

/* ----------------------------------------------------------------
 *		What RESET goes back to in a session: startup options and the settings
 *		of its role and database as they were when it logged in.
 * ----------------------------------------------------------------
 */

extern const char *baton_reset_attach(void);

/* The session's reset values are put in place; none: the backend's own. */
extern void baton_reset_install(const BatonEntryList *wanted);

/* The backend's own reset values are put in place. */
extern void baton_reset_neutralise(void);

/*
 * Startup options come before the settings of role and database (InitPostgres
 * in postinit.c), so those give way until they are applied.
 */
extern void baton_reset_prepare_greeting(void);

/*
 * Applies startup options as process_startup_options (postinit.c) does, in a
 * transaction of the caller's, and puts the RESET items into the delta.  The
 * backend's own reset values must be in place.  Returns BATON_GREETING_*: how
 * long others of this kind may be told the same.
 */
extern uint32 baton_reset_greet(const BatonEntryList *startup);

/* Reads the configuration files again, as the backend itself must see them. */
extern void baton_reset_reload(void);

/* The same if the server has done it by itself meanwhile. */
extern void baton_reset_follow_reload(void);

#endif							/* BATON_RESET_VALUES_H */
