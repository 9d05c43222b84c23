/*-------------------------------------------------------------------------
 *
 * reset_plain.h
 *		What the configuration files say of parameters that the backend has a
 *		setting of role or database for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_RESET_PLAIN_H
#define BATON_RESET_PLAIN_H

/*
 * Reads the configuration files.  The caller's memory and the session's own
 * values are left alone; reset values of a higher source are as well.
 */
extern void baton_files_read(void);

/* As the server itself reads them: the next boundary has yet to follow. */
extern void baton_files_read_by_server(void);

/* The files as the server has read them last are known of. */
extern void baton_files_seen(void);

/* Has the server read them since? */
extern bool baton_files_were_read(void);

/*
 * Once, when the backend has read neither startup options nor settings of role
 * and database, and once when it has.
 */
extern void baton_plain_record(void);
extern void baton_plain_attach(void);

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

/*
 * Reads the files, as the backend itself must see them, and what they say of
 * those parameters.  No plain items may be there.
 */
extern void baton_plain_read_files(void);

/* Those of them that no item is for get one with the plain value. */
extern void baton_plain_apply(void);

/* The same for the one of that name, if it is such. */
extern void baton_plain_apply_to(const char *name);

/* Such items are taken away; true if there were any. */
extern bool baton_plain_undo(void);

#endif							/* BATON_RESET_PLAIN_H */
