/*-------------------------------------------------------------------------
 *
 * reset_item.h
 *		One parameter whose reset value the session has otherwise than the
 *		backend: putting it in force, and taking it back.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_RESET_ITEM_H
#define BATON_RESET_ITEM_H

#include "lib/ilist.h"
#include "lib/stringinfo.h"

#include "context_guc.h"

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

/* Owns the items, which are in BatonPlaced.resets. */
extern MemoryContext baton_reset_context;
extern void baton_reset_make_context(void);

/* Does its reset value come from a setting of role or database, or an option? */
extern bool baton_reset_is_setting(const struct config_generic *record);

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
extern bool baton_reset_item_try(BatonResetItem *item);
extern void baton_reset_item_apply(BatonResetItem *item);

/* The backend's own value is in force again. */
extern void baton_reset_item_undo(BatonResetItem *item);

/* The item's value becomes the backend's own, which is no more. */
extern void baton_reset_item_keep(BatonResetItem *item);

/* A placeholder without any value is there for nobody. */
extern void baton_reset_hide_if_empty(struct config_generic *record);

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

/* Exchanges the value in force and the one kept beside it. */
extern void baton_reset_item_exchange(BatonResetItem *item);

/* All of them: the backend's own values come into force, or go again. */
extern void baton_reset_items_exchange(void);

/* Gives the record a reset value, and its active one unless it was SET. */
extern void baton_reset_give(struct config_generic *record, const BatonGucCell *cell);

/* The value of a RESET entry, as context_reset.c describes it. */
extern void baton_reset_append_value(struct config_generic *record, const BatonGucCell *cell,
									 const BatonGucIdentity *identity, StringInfo value);

#endif							/* BATON_RESET_ITEM_H */
