/*-------------------------------------------------------------------------
 *
 * port_collision.h
 *		One port for the server and the pool.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PORT_COLLISION_H
#define BATON_PORT_COLLISION_H

/*
 * Which settings are to be changed where both have one port and cannot share it,
 * palloc'd: two names, each with its file and line.  NULL: the ports differ.
 */
extern char *baton_port_collision(void);

#endif							/* BATON_PORT_COLLISION_H */
