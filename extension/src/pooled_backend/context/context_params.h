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
 *		Custom parameters that only the session knows ("SET my.var").
 * ----------------------------------------------------------------
 */

/*
 * Returns NULL, or the reason why this server's parameter table cannot be
 * used.
 */
extern const char *baton_placeholders_attach(void);

/*
 * Creates the placeholder of that name, without a value. Returns NULL if the
 * name may not be used (a library has reserved the prefix).
 */
extern struct config_generic *baton_placeholder_create(const char *name);

/*
 * Takes the placeholder, which must have no value, out of the table. Does
 * nothing if it is the server's own.
 */
extern void baton_placeholder_hide(struct config_generic *record);

/*
 * Remembers which placeholders belong to the server rather than to a session:
 * at attach all existing ones except those from a setting of role or database
 * or from the client, later those that the configuration files mention. They
 * stay even if the files no longer mention them, because the postmaster, of
 * which each new session is a copy, keeps them.
 */
extern void baton_placeholders_note_own(bool all);

/*
 * Raised when a record becomes the server's own, by which the table of
 * parameters does not change otherwise.
 */
extern uint64 baton_placeholder_changes;

/* ----------------------------------------------------------------
 *		The parameters that a session carries, and those that hold a value
 *		placed for it.
 * ----------------------------------------------------------------
 */

/* The header that precedes the text in a PARAMETER entry's value. */
typedef struct BatonParamHeader
{
	uint8		form;			/* BATON_PARAM_* */
	uint8		scontext;		/* GucContext of the SET */
	uint8		superuser;		/* role, session_authorization: is the role a
								 * superuser? */
	uint8		placeholder;	/* was it a placeholder's value? */
	uint32		srole;			/* the role that set it */
	uint32		role;			/* role, session_authorization: the role */
} BatonParamHeader;

#define BATON_PARAM_VALUE 0		/* the session's own value */
#define BATON_PARAM_EXISTS 1	/* a placeholder without a value */
#define BATON_PARAM_SOURCE 2	/* only the source is the session's */

/* How a record is carried. */
typedef enum CarryMode
{
	CARRY_NOT,					/* the session cannot change it, or its
								 * changes are not carried */
	CARRY_VALUE,
	CARRY_SOURCE,
	CARRY_PLACEHOLDER
} CarryMode;

/* One parameter of the session as it was last placed or captured. */
typedef struct BatonParam
{
	dlist_node	node;			/* in BatonPlaced.params */
	uint64		serial;			/* its entry's, 0: unknown */
	char	   *name;
	struct config_generic *record;
	enum config_type vartype;
	BatonParamHeader header;
	config_var_value value;		/* except strings */
	char	   *string;			/* the value as text; NULL: none */
	bool		keep;			/* only within install */
} BatonParam;

/* A record to look at, and the parameter placed in it. */
typedef struct BatonScanEntry
{
	struct config_generic *record;
	BatonParam *param;
	CarryMode	mode;
} BatonScanEntry;

/*
 * Does the session that is put in place have this placeholder without a value?
 */
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
 * Puts exactly these values in place, in two steps: first other values go,
 * then missing ones come. The reset values are exchanged in between, when no
 * check hook can see another session's values.
 */
extern void baton_params_make_room(const BatonEntryList *wanted);
extern void baton_params_install(const BatonEntryList *wanted);

/*
 * Appends the differences from what was put in place; returns true if there
 * were any.
 */
extern bool baton_params_capture(void);

/* Removes the session's own values, captured or not. */
extern void baton_params_forget(void);

#endif							/* BATON_CONTEXT_PARAMS_H */
