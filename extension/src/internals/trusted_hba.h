/*-------------------------------------------------------------------------
 *
 * trusted_hba.h
 *		The rules by which a backend that the dispatcher opens is let in.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TRUSTED_HBA_H
#define BATON_TRUSTED_HBA_H

/*
 * From here on this process, and no other, goes by a pg_hba.conf that lets
 * everybody in: to be called by a backend whose peer has shown that it is the
 * dispatcher, before it authenticates.
 */
extern void baton_trusted_hba_load(void);

/*
 * Does that work?  Checked in the launcher, once, before it loads the file for the
 * first time: until then its rules let everybody in, and must not be asked.
 */
extern void baton_trusted_hba_check(void);
extern bool baton_trusted_hba_works(void);

#endif							/* BATON_TRUSTED_HBA_H */
