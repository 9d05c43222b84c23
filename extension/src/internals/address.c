/*-------------------------------------------------------------------------
 *
 * address.c
 *		Socket addresses as baton_shared.h has them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netinet/in.h>
#include <sys/un.h>

#include "address.h"

bool
baton_address_make(SockAddr *address, uint16 family, uint16 port,
				   const uint8 *bytes, uint32 scope)
{
	memset(address, 0, sizeof(*address));
	if (family == AF_INET)
	{
		struct sockaddr_in *in = (struct sockaddr_in *) &address->addr;

		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		memcpy(&in->sin_addr, bytes, sizeof(in->sin_addr));
		address->salen = sizeof(*in);
	}
	else if (family == AF_INET6)
	{
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *) &address->addr;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		in6->sin6_scope_id = scope;
		memcpy(&in6->sin6_addr, bytes, sizeof(in6->sin6_addr));
		address->salen = sizeof(*in6);
	}
	else
	{
		struct sockaddr_un *un = (struct sockaddr_un *) &address->addr;

		un->sun_family = AF_UNIX;
		address->salen = sizeof(sa_family_t);
	}
	return family == AF_INET || family == AF_INET6 || family == AF_UNIX;
}
