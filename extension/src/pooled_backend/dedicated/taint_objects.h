/*-------------------------------------------------------------------------
 *
 * taint_objects.h
 *		Which objects the transaction at hand has made and not dropped again.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_OBJECTS_H
#define BATON_TAINT_OBJECTS_H

/* The object access hook: an object was created, or is about to be dropped. */
extern void baton_objects_created(Oid class, Oid object, int sub);
extern void baton_objects_dropped(Oid class, Oid object, int sub);

/* A subtransaction was rolled back: what it had dropped is there again. */
extern void baton_objects_restored(void);

/* What has come of the transaction, once it has committed. */
typedef struct BatonObjectsLeft
{
	bool		made;			/* it may have left objects that it has made */
	bool		dropped;		/* it has dropped some that were there before */
	bool		came_and_went;	/* it has made some, and dropped all of them */
} BatonObjectsLeft;

extern BatonObjectsLeft baton_objects_left(void);

/* At each transaction's end. */
extern void baton_objects_forget(void);

#endif							/* BATON_TAINT_OBJECTS_H */
