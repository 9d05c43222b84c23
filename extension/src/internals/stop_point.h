/*-------------------------------------------------------------------------
 *
 * stop_point.h
 *		Functions at which tests stop a backend by a debugger: each stays one of
 *		its own, by its own name, whatever the compiler makes of a whole program
 *		(extension/Makefile).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STOP_POINT_H
#define BATON_STOP_POINT_H

/* gcc 8 and later; others make no clones of a function that is not inlined */
#if defined(__has_attribute)
#if __has_attribute(noipa)
#define BATON_STOP_POINT __attribute__((noipa))
#endif
#endif

#ifndef BATON_STOP_POINT
#define BATON_STOP_POINT pg_noinline
#endif

#endif							/* BATON_STOP_POINT_H */
