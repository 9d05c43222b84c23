/*-------------------------------------------------------------------------
 *
 * context_params.h
 *		A session's own values of parameters (SET): the records that it may
 *		change, capture and installation.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_PARAMS_H
#define BATON_CONTEXT_PARAMS_H

#include "lib/ilist.h"
#include "utils/guc_tables.h"

#include "arena.h"
#include "pg_guc.h"

/* ----------------------------------------------------------------
 *		Custom parameters of which only the session knows ("SET my.var").
 * ----------------------------------------------------------------
 */

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

/*
 * Rises when a record becomes the server's own: the table of parameters does
 * not look otherwise then.
 */
extern uint64 baton_placeholder_changes;

/* ----------------------------------------------------------------
 *		Which of the server's parameters a session carries, and which of them
 *		hold what was placed for it.
 * ----------------------------------------------------------------
 */

/* What stands before the text in a PARAMETER entry's value. */
typedef struct BatonParamHeader
{
	uint8		form;			/* BATON_PARAM_* */
	uint8		scontext;		/* GucContext under which it was set */
	uint8		superuser;		/* role, session_authorization: is it one? */
	uint8		placeholder;	/* was it a placeholder's value? */
	uint32		srole;			/* who set it */
	uint32		role;			/* role, session_authorization: the role */
} BatonParamHeader;

#define BATON_PARAM_VALUE 0		/* the session's own value */
#define BATON_PARAM_EXISTS 1	/* a placeholder without one */
#define BATON_PARAM_SOURCE 2	/* only the source is the session's */

/* How a record is dealt with. */
typedef enum CarryMode
{
	CARRY_NOT,					/* the session cannot change it, or may */
	CARRY_VALUE,
	CARRY_SOURCE,
	CARRY_PLACEHOLDER
} CarryMode;

/* One parameter of the session as it was last placed or captured. */
typedef struct BatonParam
{
	dlist_node	node;			/* in BatonPlaced.params */
	uint64		serial;			/* its entry's, 0 if not known */
	char	   *name;
	struct config_generic *record;
	enum config_type vartype;
	BatonParamHeader header;
	config_var_value value;		/* other than strings */
	char	   *string;			/* the value as text; NULL: none */
	bool		keep;			/* only within install */
} BatonParam;

/* A record to look at, and what is placed in it. */
typedef struct BatonScanEntry
{
	struct config_generic *record;
	BatonParam *param;
	CarryMode	mode;
} BatonScanEntry;

/* Has the session that is put in place the placeholder, without a value? */
extern bool baton_param_exists(const char *name);

/* ----------------------------------------------------------------
 *		A session's own values of parameters (SET).
 * ----------------------------------------------------------------
 */

/* A list of entries of one kind, in the order of the session's items. */
typedef struct BatonEntryList
{
	BatonStored *entries;
	int			count;
	int			size;
} BatonEntryList;

extern const char *baton_params_attach(void);

/*
 * Exactly these values are put in place, in two steps: first what is not of
 * them goes, then what is not there comes.  The reset values are exchanged in
 * between, where no other session's values are seen by any check hook.
 */
extern void baton_params_make_room(const BatonEntryList *wanted);
extern void baton_params_install(const BatonEntryList *wanted);

/* Appends what is different from what was put in place; true if any was. */
extern bool baton_params_capture(void);

/* The session's own values are taken away, captured or not. */
extern void baton_params_forget(void);

#endif							/* BATON_CONTEXT_PARAMS_H */
